"""A trainer is killed at random and at named points of its saves; what it leaves is always a whole checkpoint.

The worker notes in a file outside which step it was told is safe. After each kill a fresh process restores: the step
must be that one or a later one, and everything in it equal, to the last bit, to a run that never stopped. The next
worker goes on from there. ``MONOLITH_CRASH_CYCLES`` sets the number of cycles, ``MONOLITH_CRASH_SEED`` repeats a run.
"""

from __future__ import annotations

import json
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torture_counts import add_counts

CYCLES = int(os.environ.get("MONOLITH_CRASH_CYCLES", "12"))
SEED = int(os.environ.get("MONOLITH_CRASH_SEED", str(random.SystemRandom().randrange(2**32))))
SAFE = struct.Struct("<q")
POINTS = [
    "checkpoint.dense_written",
    "snapshot.part_written",
    "snapshot.before_rename",
    "snapshot.after_rename",
    "checkpoint.before_manifest",
    "checkpoint.before_rename",
    "checkpoint.old_aside",
    "checkpoint.after_rename",
    "checkpoint.old_removed",
]


class Workshop:
    """Runs jobs in forked workers, one at a time."""

    def __init__(self) -> None:
        child = Path(__file__).parents[1] / "support" / "checkpoint_crash_child.py"
        self._process = subprocess.Popen(
            [sys.executable, str(child)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def begin(self, do: str, **arguments: Any) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        return int(self._line())

    def end(self) -> tuple[int, Any]:
        answer = json.loads(self._line())
        return answer["status"], answer["result"]

    def run(self, do: str, **arguments: Any) -> Any:
        self.begin(do, **arguments)
        status, result = self.end()
        assert status == 0
        return result

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def close(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0


@pytest.fixture(scope="module")
def workshop() -> Iterator[Workshop]:
    made = Workshop()
    yield made
    made.close()


def kill_one(workshop: Workshop, model_dir: Path, safe: Path, failpoint: str, chance: random.Random) -> None:
    arguments = {"failpoint": failpoint, "arm_after": chance.randrange(4), "seed": SEED % 2**32}
    pid = workshop.begin("train_until_killed", model_dir=str(model_dir), safe_path=str(safe), **arguments)
    if not failpoint:
        time.sleep(chance.uniform(0, 0.3))  # the moment of the kill is what the test varies; nothing waits for it
        os.kill(pid, signal.SIGKILL)
    status, _ = workshop.end()
    assert status == -signal.SIGKILL, f"the failpoint {failpoint} was never reached"


def test_a_killed_trainer_always_leaves_a_whole_checkpoint(workshop: Workshop, tmp_path: Path) -> None:
    print(f"MONOLITH_CRASH_SEED={SEED}")
    chance = random.Random(SEED)
    model_dir, safe = tmp_path / "run", tmp_path / "safe"
    safe.write_bytes(SAFE.pack(-1))
    found: dict[int, str] = {}
    plan = [*POINTS, *(chance.choice(["", "", *POINTS]) for _ in range(CYCLES - len(POINTS)))]
    chance.shuffle(plan)
    for cycle, failpoint in enumerate(plan):
        kill_one(workshop, model_dir, safe, failpoint, chance)
        (safe_step,) = SAFE.unpack(safe.read_bytes())
        restored = workshop.run("restored_digest", model_dir=str(model_dir), seed=SEED % 2**32)
        where = f"seed {SEED}, cycle {cycle}, {failpoint or 'random'}: step {safe_step} was safe, got {restored}"
        assert restored["step"] >= safe_step, where
        if restored["step"] >= 0:
            found[restored["step"]] = restored["digest"]
    assert found, "no save was ever finished"
    wanted = workshop.run("digests_of_an_unbroken_run", seed=SEED % 2**32, steps=sorted(found))
    assert {int(step): digest for step, digest in wanted.items()} == found
    add_counts(cycles=len(plan), operations=len(found), faults=len(plan))


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(
    ("most_bytes", "file"),
    [(16, "dense.safetensors"), (1000, "optimizer.safetensors"), (2500, "state.json"), (40_000, ".rows")],
)
def test_a_full_disk_is_said_clearly_and_costs_no_earlier_checkpoint(
    workshop: Workshop, tmp_path: Path, most_bytes: int, file: str, background: bool
) -> None:
    result = workshop.run("fill_the_disk", model_dir=str(tmp_path), most_bytes=most_bytes, background=background)
    assert "the checkpoint of step 40 was not saved" in result["error"]
    assert "File too large" in result["error"]
    assert file in result["error"]
    assert "the last good one is" in result["error"]
    assert "Free some space" in result["error"]
    assert result["left"] == ["step-000000020"]
    assert result["between"] == 20
    assert result["after"] == 60
