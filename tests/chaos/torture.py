"""Torture in rotation, with counts: ``make torture MINUTES=60``.

Drills take turns until the time is over: crash-recovery cycles, file faults and power losses, histories of numbered
pushes, loops of numbered events, streams of numbered cuts, fuzzers, and a soak of a job. The run prints one line per
drill, and appends one line to docs/reference/torture.md. It exits with 1 after a violation, and prints the command that
repeats the drill.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from fault_layer import FaultHost, why_no_fault_layer  # noqa: E402 - the folder is on the path only now
from file_judge import FAULTS, judge_run  # noqa: E402
from file_scenarios import SCENARIOS  # noqa: E402
from torture_counts import VARIABLE, read_counts  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "torture.md"
_GRACE_S = 900.0


@dataclass
class Counts:
    """Work of a run, and the violations."""

    cycles: int = 0
    operations: int = 0
    executions: int = 0
    faults: int = 0
    violations: list[str] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        """Add the counts of a drill."""
        self.cycles += other.cycles
        self.operations += other.operations
        self.executions += other.executions
        self.faults += other.faults
        self.violations += other.violations


def run_tests(arguments: Sequence[str], seconds: float, seed: int, **variables: str) -> Counts:
    """Run tests with a seed, and return their counts; a failed test is a violation."""
    with tempfile.TemporaryDirectory(prefix="monolith-torture-") as folder:
        counts_path = Path(folder) / "counts"
        environment = {**os.environ, "TEST_SEED": str(seed), "MONOLITH_CRASH_SEED": str(seed)}
        environment |= {VARIABLE: str(counts_path), **variables}
        options = ["-q", "-x", "-p", "no:cacheprovider", f"--timeout={int(seconds + _GRACE_S)}"]
        command = [sys.executable, "-m", "pytest", *options, *arguments]
        result = _run(command, environment, seconds + _GRACE_S)
        counts = Counts(**read_counts(counts_path))
    if result is not None:
        shown = " ".join(f"{name}={value}" for name, value in variables.items())
        counts.violations.append(f"TEST_SEED={seed} MONOLITH_CRASH_SEED={seed} {shown} {' '.join(command)}\n{result}")
    return counts


def _run(command: Sequence[str], environment: dict[str, str], timeout_s: float) -> str | None:
    """Run a command; return the end of its output if it fails."""
    status, output = _run_group(command, environment, timeout_s)
    if status is None:
        return f"no end after {timeout_s:.0f} s\n{output[-4000:]}"
    return None if status == 0 else output[-4000:]


def _run_group(command: Sequence[str], environment: dict[str, str], timeout_s: float) -> tuple[int | None, str]:
    """Run a command; return its status, None after the timeout, and its output. No process of its group survives."""
    with tempfile.TemporaryFile() as file:
        process = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file, process_group=0
        )
        status = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(timeout_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        file.seek(0)
        return status, file.read().decode(errors="replace")


# --- drills ---


def crash_tables(seconds: float, seed: int) -> Counts:
    """Kill processes that save tables and write delta logs."""
    tests = ["tests/integration/test_crash.py", "tests/integration/test_delta_crash.py"]
    cycles = str(max(10, int(seconds / 2)))
    return run_tests(tests, seconds, seed, MONOLITH_CRASH_CYCLES=cycles)


def crash_trainers(seconds: float, seed: int) -> Counts:
    """Kill trainers that save checkpoints."""
    tests = ["tests/integration/test_checkpoint_crash.py", "-k", "killed"]
    return run_tests(tests, seconds, seed, MONOLITH_CRASH_CYCLES=str(max(12, int(seconds))))


def break_files(seconds: float, seed: int) -> Counts:
    """Run writers of durable files under faults and power losses."""
    counts = Counts()
    if reason := why_no_fault_layer():
        counts.violations.append(reason)
        return counts
    chance = random.Random(seed)
    end_s = time.monotonic() + seconds
    with FaultHost() as host, tempfile.TemporaryDirectory(prefix="monolith-torture-") as folder:
        number = 0
        while time.monotonic() < end_s:
            number += 1
            name = chance.choice(sorted(SCENARIOS))
            pairs = [chance.choice(sorted(FAULTS.values())) for _ in range(chance.choice([1, 1, 2]))]
            rules = ";".join(
                f"{rule},skip={chance.randrange(40)},times={chance.choice([1, 1, 2, 3])}" for rule in pairs
            )
            verdict = judge_run(host, name, Path(folder) / str(number), rules, chance, steps=5, points=15)
            counts.cycles += verdict.power_losses
            counts.operations += verdict.operations
            counts.faults += verdict.faults
            counts.violations += [
                f"files, seed {seed}, run {number}, {name}, {rules}: {text}" for text in verdict.problems
            ]
    return counts


def push_numbers(seconds: float, seed: int) -> Counts:
    """Push numbers from many clients while parameter servers die, and check the history."""
    transport = "data_plane" if seed % 2 else "grpc"
    tests = ["tests/chaos/test_distributed_history.py", "-k", f"{transport} and 0.5"]
    return run_tests(tests, seconds, seed, CHAOS_SECONDS=str(int(seconds)))


def stream_cuts(seconds: float, seed: int) -> Counts:
    """Kill the trainer, parameter servers and the model server of a deployment under load."""
    return run_tests(["tests/chaos/test_cut_stream.py"], seconds, seed, CHAOS_SECONDS=str(int(seconds)))


def loop_events(seconds: float, seed: int) -> Counts:
    """Kill and replace the producer, joiner and consumer of numbered events, and check their rows."""
    return run_tests(["tests/chaos/test_event_loop.py"], seconds, seed, CHAOS_SECONDS=str(int(seconds)))


def soak_job(seconds: float, seed: int) -> Counts:
    """Pause and kill the processes of a job, and measure their growth."""
    duration = str(int(max(seconds, 60)))
    command = [sys.executable, "tests/chaos/soak.py", "--seconds", duration, "--seed", str(seed)]
    result = _run(command, dict(os.environ), seconds + _GRACE_S)
    return Counts(violations=[] if result is None else [f"{' '.join(command)}\n{result}"])


def fuzz(seconds: float, seed: int) -> Counts:
    """Fuzz one native parser, another each time."""
    targets = sorted(path.name.removesuffix("_fuzz.cc") for path in (ROOT / "cpp" / "fuzz").glob("*_fuzz.cc"))
    target = targets[seed % len(targets)]
    command = ["scripts/fuzz.sh", str(max(1, int(seconds))), target]
    status, output = _run_group(command, dict(os.environ), seconds + _GRACE_S)
    executions = sum(int(number) for number in re.findall(r"(\d+) executions", output))
    problems = [] if status == 0 else [f"{' '.join(command)}: status {status}\n{output[-4000:]}"]
    return Counts(executions=executions, violations=problems)


DRILLS: dict[str, Callable[[float, int], Counts]] = {
    "files": break_files,
    "tables": crash_tables,
    "pushes": push_numbers,
    "fuzz": fuzz,
    "events": loop_events,
    "trainers": crash_trainers,
    "cuts": stream_cuts,
    "soak": soak_job,
}

# --- the run ---


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the drills from the command line; return the status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="duration")
    parser.add_argument("--seed", type=int, default=None, help="repeats a run")
    parser.add_argument("--drills", default=",".join(DRILLS), help="names, separated by commas")
    parser.add_argument("--page", type=Path, default=PAGE, help="page that gets the line of this run")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.drills.split(",")) - set(DRILLS))
    if unknown:
        parser.error(f"drills are {unknown}, expected some of {', '.join(DRILLS)}")
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    names = options.drills.split(",")
    started_s = time.monotonic()
    end_s = started_s + options.minutes * 60
    slice_s = min(120.0, options.minutes * 60 / len(names))
    total, number = Counts(), 0
    while number < len(names) or time.monotonic() < end_s:
        if number and time.monotonic() >= end_s:
            break
        name = names[number % len(names)]
        counts = DRILLS[name](min(slice_s, max(5.0, end_s - time.monotonic())), (seed + number) % 2**32)
        total.add(counts)
        number += 1
        sys.stdout.write(
            f"{time.monotonic() - started_s:.0f} s {name}: cycles={counts.cycles} operations={counts.operations} "
            f"executions={counts.executions} faults={counts.faults} violations={len(counts.violations)}\n"
        )
        for text in counts.violations:
            sys.stdout.write(f"VIOLATION {text}\n")
        sys.stdout.flush()
    line = _line(total, (time.monotonic() - started_s) / 60, number, names, seed)
    sys.stdout.write(line)
    _append(options.page, line)
    return 1 if total.violations else 0


def _line(total: Counts, minutes: float, drills: int, names: Sequence[str], seed: int) -> str:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=30
    ).stdout.strip()
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    cells = [day, f"{minutes:.0f}", f"{drills} ({' '.join(names)})", total.cycles, total.operations, total.executions]
    cells += [total.faults, len(total.violations), seed, commit or "-"]
    return "| " + " | ".join(str(cell) for cell in cells) + " |\n"


def _append(page: Path, line: str) -> None:
    text = page.read_text()
    page.write_text(text.rstrip("\n") + "\n" + line)


if __name__ == "__main__":
    sys.exit(main())
