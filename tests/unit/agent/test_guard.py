"""A foreign server ends with its agent, with its guard, and at SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from monolith.agent.children import Child, ChildPlan
from monolith.agent.guard import guarded
from monolith.core.clock import Deadline, SystemClock
from monolith.core.lifeline import Lifeline


def wait_until(is_true: Callable[[], object], patience_s: float = 60.0) -> None:
    clock = SystemClock()
    deadline = Deadline(clock, patience_s)
    while not is_true():
        assert not deadline.is_past, "the condition never became true"
        clock.sleep_s(0.01)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def start(folder: Path, lifeline: Lifeline) -> tuple[Child, int]:
    """Start a guarded program that writes its id; return both."""
    file = folder / "pid"
    code = f"import os, time, pathlib; pathlib.Path({str(file)!r}).write_text(str(os.getpid()) + '.'); time.sleep(600)"
    child = Child(ChildPlan(name="foreign", command=guarded([sys.executable, "-c", code])), lifeline, restarts=False)
    child.start()
    wait_until(lambda: file.exists() and file.read_text().endswith("."))
    return child, int(file.read_text()[:-1])


@pytest.mark.parametrize("way", ["lifeline", "guard killed", "stop"])
def test_a_foreign_server_is_never_left_behind(tmp_path: Path, way: str) -> None:
    lifeline = Lifeline()
    child, server = start(tmp_path, lifeline)
    assert is_running(server)
    if way == "lifeline":
        lifeline.close()
    elif way == "guard killed":
        os.kill(child.pid or 0, signal.SIGKILL)
    else:
        child.stop()
    wait_until(lambda: not is_running(server))
    child.stop()
    lifeline.close()


def test_a_guard_returns_the_status_of_its_server() -> None:
    assert subprocess.run(guarded([sys.executable, "-c", "raise SystemExit(7)"]), check=False).returncode == 7
