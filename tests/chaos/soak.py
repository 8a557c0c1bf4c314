"""Runs a long job, pauses and kills its processes at random, and measures them: ``python tests/chaos/soak.py``.

Prints a line of JSON per minute, and a verdict at the end. Exits with 1 if a process grows, the job makes no progress,
or files or processes are left; with 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from monolith.core.clock import Clock, Deadline, SystemClock
from monolith.core.errors import ClusterError
from monolith.demo.world import World
from monolith.demo.world.files import write_parquet
from monolith.testing.processes.local_cluster import LocalCluster
from monolith.testing.suites.growth import Usage, growth, usage_of

__all__ = ["Soak", "main"]

NAMES = ("ps 0", "ps 1", "chief", "worker 1")
_NEVER_KILLED = ("ps 0", "chief")
_RESTARTS = 10_000
_FEATURES = "{sparse: [user_id, item_id, category], dense: [price], dim: 8, hidden: [16]}"


@dataclass(slots=True)
class _Watched:
    """One process, from its start to its end."""

    pid: int = -1
    samples: list[Usage] = field(default_factory=list)


class Soak:
    """Two servers and two workers.

    Args:
        folder: Working folder.
        seconds: Duration.
        seed: Seed of the faults.
        sample_s: Seconds between measurements.
        report_s: Seconds between reports.
        clock: Clock of these times.
    """

    def __init__(
        self,
        folder: Path,
        seconds: float,
        *,
        seed: int,
        sample_s: float = 2.0,
        report_s: float = 60.0,
        clock: Clock | None = None,
    ) -> None:
        self._folder = folder
        self._seconds = seconds
        self._chance = random.Random(seed)
        self._sample_s = sample_s
        self._report_s = report_s
        self._clock = clock or SystemClock()
        self._watched = {name: _Watched() for name in NAMES}
        self._harms = {"hold": 0, "kill": 0}
        self._begun_s = self._clock.monotonic_s()
        self.problems: list[str] = []
        """Problems, in words."""
        self.is_interrupted = False
        """Whether it was ended before its time."""

    def run(self) -> bool:
        """Run it; return whether all is well."""
        clicks = World(users=400, items=200, seed=1).clicks(8000)
        for number in range(4):
            write_parquet(clicks.rows(number * 2000, (number + 1) * 2000), self._folder / f"clicks-{number}.parquet")
        train = [
            "train", "--task", "deepfm", "--task-options", _FEATURES, "--data", "clicks-*.parquet",
            "--label-features", "click", "--batch-size", 64, "--epochs", 0, "--model-dir", "run", "--threads", 1,
            "--save-summary-steps", 0, "--log-step-count-steps", 50, "--save-checkpoints-secs", 20,
            "--restore-sync-poll-interval-ms", 100, "--retry-wait-in-secs", 0.5, "--chief-timeout-secs", 60,
        ]  # fmt: skip
        cluster = LocalCluster(
            train,
            num_ps=2,
            num_workers=2,
            folder=self._folder,
            max_restarts=_RESTARTS,
            timeout_s=300,
            limit_s=self._seconds + 900,
        )
        try:
            with cluster:
                for name in ("chief", "worker 1"):
                    cluster.wait_for(name, "step finished")
                self._watch(cluster)
        except ClusterError as error:
            self.problems.append(str(error))
        except KeyboardInterrupt:
            self.is_interrupted = True
        self._judge()
        return not self.problems

    def verdict(self) -> str:
        """Return the verdict in one line."""
        end = "interrupted" if self.is_interrupted else "ended"
        harms = " and ".join(f"{count} times {harm}" for harm, count in self._harms.items())
        found = "all is well" if not self.problems else f"{len(self.problems)} problems"
        return f"soak {end} after {self._elapsed_s():.0f} s, with {harms}: {found}"

    def _elapsed_s(self) -> float:
        return self._clock.monotonic_s() - self._begun_s

    def _watch(self, cluster: LocalCluster) -> None:
        pause = threading.Event()
        end = Deadline(self._clock, self._seconds)
        report = Deadline(self._clock, self._report_s)
        harm = Deadline(self._clock, 5.0)
        steps, warm_up = _steps(cluster), Deadline(self._clock, min(60.0, self._seconds / 4))
        while not end.is_past:
            pause.wait(self._sample_s)
            if warm_up.is_past:
                self._sample(cluster)
            if harm.is_past and end.remaining_s() > 30:
                self._hurt(cluster, pause)
                harm = Deadline(self._clock, self._chance.uniform(5, 20))
            if report.is_past:
                now = _steps(cluster)
                self._report(cluster, now)
                for name in ("chief", "worker 1"):
                    if now[name] == steps[name]:
                        self.problems.append(f"{name} took no step in {self._report_s:g} s")
                steps, report = now, Deadline(self._clock, self._report_s)
        self._report(cluster, _steps(cluster))

    def _hurt(self, cluster: LocalCluster, pause: threading.Event) -> None:
        if self._chance.random() < 0.85:
            name = self._chance.choice(NAMES)
            self._harms["hold"] += 1
            cluster.hold(name)
            pause.wait(self._chance.uniform(0.2, 3.0))
            cluster.release(name)
        else:
            name = self._chance.choice([one for one in NAMES if one not in _NEVER_KILLED])
            self._harms["kill"] += 1
            cluster.kill(name)

    def _sample(self, cluster: LocalCluster) -> None:
        for name, watched in self._watched.items():
            pid = cluster.pid(name)
            usage = None if pid is None else usage_of(pid)
            if pid is None or usage is None:
                continue
            if pid != watched.pid:
                self._judge_one(name, watched)
                watched.pid, watched.samples = pid, []
            watched.samples.append(usage)

    def _report(self, cluster: LocalCluster, steps: dict[str, int]) -> None:
        usages = {name: one.samples[-1].as_dict() for name, one in self._watched.items() if one.samples}
        starts = {name: cluster.starts(name) for name in NAMES}
        line = {
            "seconds": round(self._elapsed_s()),
            "steps": steps,
            "starts": starts,
            "harms": self._harms,
            "usage": usages,
            "problems": self.problems,
        }
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    def _judge(self) -> None:
        for name, watched in self._watched.items():
            self._judge_one(name, watched)
            if watched.pid >= 0 and usage_of(watched.pid) is not None:
                self.problems.append(f"{name} still runs as process {watched.pid}")

    def _judge_one(self, name: str, watched: _Watched) -> None:
        # A restarted process warms up for a while.
        skipped = 0 if name in _NEVER_KILLED else round(min(60.0, self._seconds / 4) / self._sample_s)
        self.problems += [f"{name}: {text}" for text in growth(watched.samples[skipped:])]


def _steps(cluster: LocalCluster) -> dict[str, int]:
    """Return the number of progress lines of each worker, which grows even after a restart."""
    return {
        name: sum(1 for line in cluster.lines(name) if re.search("step finished", line))
        for name in ("chief", "worker 1")
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a soak from the command line; return its status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long")
    parser.add_argument("--seed", type=int, default=None, help="of what is done to the processes")
    parser.add_argument("--report-s", type=float, default=60.0, help="seconds between two reports")
    given = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    sys.stderr.write(f"soak of {given.seconds:g} s, seed {seed}\n")
    with tempfile.TemporaryDirectory(prefix="monolith-soak-") as folder:
        os.environ["TMPDIR"] = folder
        tempfile.tempdir = folder
        soak = Soak(Path(folder), given.seconds, seed=seed, report_s=given.report_s)
        soak.run()
        left = [path.name for path in Path(folder).glob("monolith-job-*")]
    soak.problems += [f"left behind: {name}" for name in left]
    for text in [*soak.problems, soak.verdict()]:
        sys.stderr.write(f"{text}\n")
    if soak.problems:
        return 1
    return 130 if soak.is_interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
