"""Two processes that take one place: two chiefs of one job, and two publishers of one folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import training_child as child
from job_processes import JobProcesses
from monolith.artifacts import CheckpointFolder
from monolith.artifacts.delta_log import read_cut
from monolith.core.clock import SystemClock
from monolith.core.errors import ConfigError
from monolith.core.free_ports import free_port
from monolith.embedding import MultiTable, Sgd, SliceSpec, TableSpec
from monolith.sync import LocalRowLog, Publisher
from monolith.testing.eventually import eventually

SPEC = TableSpec("item", [SliceSpec(1, optimizer=Sgd(learning_rate=1.0))])

PUBLISHER = """
import sys
from monolith.core.clock import SystemClock
from monolith.embedding import MultiTable, Sgd, SliceSpec, TableSpec
from monolith.sync import LocalRowLog, Publisher

tables = MultiTable([TableSpec("item", [SliceSpec(1, optimizer=Sgd(learning_rate=1.0))])])
logs = LocalRowLog(sys.argv[1], tables, clock=SystemClock())
publisher = Publisher(sys.argv[1], logs, dict, clock=SystemClock())
tables["item"].assign([1], [[1.0]])
publisher.publish()
print("published", flush=True)
sys.stdin.read()
"""


def options(folder: Path) -> list[object]:
    return [
        "--task", f"{child.__file__}:Ranker", "--data", child.write_data(folder), "--batch-size", 40, "--threads", 1,
        "--epochs", 0, "--save-summary-steps", 0, "--log-step-count-steps", 10, "--connect-retries", 600,
        "--retry-backoff-ms", 100, "--discovery-type", "file", "--discovery-folder", folder / "cluster",
    ]  # fmt: skip


def wait_for_steps(job: JobProcesses, start: int) -> None:
    """Wait until one start of the chief takes further steps."""
    before = job.logged("chief", start).count("step finished")
    eventually(lambda: job.logged("chief", start).count("step finished") > before + 1, timeout_s=60)


def test_a_second_chief_of_a_model_folder_is_refused_and_the_first_continues(tmp_path: Path) -> None:
    with JobProcesses(tmp_path, [*options(tmp_path), "--model-dir", tmp_path / "run"]) as job:
        job.start_all()
        job.wait_for("chief", "step finished")
        job.start("chief")
        assert job.end("chief") == 1
        assert "is in use by process" in job.logged("chief", 1)
        wait_for_steps(job, 0)
        job.signal_first("chief", signal.SIGTERM)
        assert job.end_first("chief") == 0, job.logs()
    assert CheckpointFolder(tmp_path / "run" / "checkpoints").newest() is not None


def test_a_chief_that_wakes_up_beside_its_successor_ends(tmp_path: Path) -> None:
    """Two machines without a common folder: only discovery knows both chiefs, by their addresses."""
    with JobProcesses(tmp_path, [*options(tmp_path), "--heartbeat-interval-secs", 0.1]) as job:
        job.start_all()
        job.wait_for("chief", "step finished")
        job.signal("chief", signal.SIGSTOP)
        job.start("chief", "--bind-port", free_port())
        eventually(lambda: "first step is done" in job.logged("chief", 1), timeout_s=60)
        job.signal_first("chief", signal.SIGCONT)
        assert job.end_first("chief") == 1
        assert "place in discovery lost to another process" in job.logged("chief", 0)
        wait_for_steps(job, 1)
        job.signal("chief", signal.SIGTERM)
        assert job.end("chief") == 0, job.logs()


def test_a_second_publisher_is_refused_until_the_first_process_ends(tmp_path: Path) -> None:
    folder = tmp_path / "published"
    command = [sys.executable, "-c", PUBLISHER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        try:
            assert first.stdout is not None
            assert first.stdout.readline() == "published\n"
            os.kill(first.pid, signal.SIGSTOP)  # a stopped publisher still owns the folder
            before = read_cut(folder)
            assert before is not None
            tables = MultiTable([SPEC])
            logs = LocalRowLog(tmp_path / "logs", tables, clock=SystemClock())
            with pytest.raises(ConfigError, match="in use by another publisher"):
                Publisher(folder, logs, dict, clock=SystemClock())
            assert read_cut(folder) == before
        finally:
            first.kill()
        first.wait(60)
        second = Publisher(folder, logs, dict, clock=SystemClock())
        second.publish()
        after = read_cut(folder)
        assert after is not None
        assert (after.number, after.epoch) == (before.number + 1, before.epoch + 1)
        second.close()
