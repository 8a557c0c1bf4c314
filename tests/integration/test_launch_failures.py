"""``monolith launch local`` after a death: the launcher names the process immediately, and ends without stack dumps."""

from __future__ import annotations

import inspect
import signal
import threading
import time
from pathlib import Path

import training_child as child
from monolith.cli.launch import local
from monolith.testing.eventually import eventually
from monolith.training.cluster.launch.local import LocalJob


class _Log:
    """Lines of all processes, with the time of each."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str, str]] = []

    def say(self, name: str, line: str, is_out: bool) -> None:
        self.lines.append((time.monotonic(), name, line))

    def find(self, text: str) -> list[tuple[float, str, str]]:
        return [each for each in list(self.lines) if text in each[2]]


def _options(folder: Path, *more: object) -> list[str]:
    pattern = child.write_data(folder)
    given = [
        "train", "--task", f"{child.__file__}:Ranker", "--data", pattern, "--batch-size", 40, "--threads", 1,
        "--epochs", 0, "--model-dir", folder / "run", "--save-summary-steps", 0, "--log-step-count-steps", 10, *more,
    ]  # fmt: skip
    return [str(each) for each in given]


def test_a_killed_server_is_named_within_a_second_and_workers_end_without_stack_dumps(tmp_path: Path) -> None:
    log = _Log()
    with LocalJob(_options(tmp_path), num_ps=1, num_workers=1, say=log.say, folder=tmp_path) as job:
        eventually(lambda: log.find("step finished"))
        waiter = threading.Thread(target=job.wait, daemon=True)
        waiter.start()
        killed_s = time.monotonic()
        job.signal("ps 0", signal.SIGKILL)
        waiter.join(60)
        assert not waiter.is_alive()
    stopped_s = time.monotonic()
    named = log.find("ps 0 was ended by SIGKILL; its last line: ")
    assert len(named) == 1
    assert named[0][2].endswith("; stopping the other processes")
    assert named[0][0] - killed_s < 3.0, "within a second, on a machine without other load"
    assert stopped_s - killed_s < 20.0, "workers do not wait for the lost server"
    assert not log.find("Fatal Python error")
    assert not log.find("Thread 0x")


def test_a_process_that_repeats_its_error_is_restarted_once_only(tmp_path: Path) -> None:
    log = _Log()
    arguments = _options(tmp_path, "--data", tmp_path / "absent-*.pb")
    with LocalJob(arguments, num_ps=1, num_workers=1, say=log.say, folder=tmp_path, max_restarts=3) as job:
        ended = job.wait(timeout_s=120)
        assert ended is not None
        assert ended.name == "chief"
        assert "absent-*.pb" in ended.error
        assert job.starts("chief") == 2
    assert len(log.find("; restarting (1 of 3)")) == 1


def test_the_launcher_restarts_three_times_by_default() -> None:
    assert inspect.signature(local).parameters["restart"].default == 3
