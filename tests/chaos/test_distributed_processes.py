"""Jobs of several processes: they end well, survive faults, and leave no process or file behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from monolith.artifacts import CheckpointFolder
from monolith.demo.world import World
from monolith.demo.world.files import write_parquet
from monolith.testing.processes.local_cluster import LocalCluster

FEATURES = "{sparse: [user_id, item_id, category], dense: [price], dim: 4, hidden: [8]}"
TRAIN = [
    "train", "--task", "deepfm", "--task-options", FEATURES, "--data", "clicks-*.parquet", "--label-features", "click",
    "--batch-size", 50, "--model-dir", "run", "--threads", 1, "--save-summary-steps", 0, "--log-step-count-steps", 20,
    "--restore-sync-poll-interval-ms", 100, "--retry-wait-in-secs", 0.5, "--chief-timeout-secs", 20,
]  # fmt: skip
PROGRAM = [sys.executable, "-c", "from monolith.cli.main import main; main()"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    clicks = World(users=40, items=30, seed=4).clicks(2000)
    for number in range(4):
        write_parquet(clicks.rows(number * 500, (number + 1) * 500), folder / f"clicks-{number}.parquet")
    return folder


@pytest.fixture
def folder(tmp_path: Path, data: Path) -> Path:
    for path in data.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


def saved_steps(folder: Path) -> list[int]:
    return [one.step for one in CheckpointFolder(folder / "run" / "checkpoints").saved()]


def test_a_job_of_four_processes_is_launched_and_its_result_is_the_chief_s(folder: Path) -> None:
    command = ["launch", "local", "--num-ps", 2, "--num-workers", 2, "--", *TRAIN, "--epochs", 2, "--json"]
    done = subprocess.run([*PROGRAM, *map(str, command)], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ctr/auc"] > 0.5, "standard output has the chief's metrics and nothing else"
    prefixes = {line.split("|")[0].strip() for line in done.stderr.splitlines() if "|" in line}
    assert prefixes == {"ps 0", "ps 1", "chief", "worker 1"}
    # Each worker had half of 40 batches, twice.
    assert saved_steps(folder) == [40]


def test_processes_that_are_killed_and_held_come_back_and_the_job_ends_well(folder: Path) -> None:
    endless = [*TRAIN, "--epochs", 0, "--save-checkpoints-steps", 50]
    with LocalCluster(endless, num_ps=2, num_workers=2, folder=folder, max_restarts=1, limit_s=900) as cluster:
        cluster.wait_for("chief", "checkpoint saved")
        cluster.wait_for("worker 1", "step finished")
        before = len([line for line in cluster.lines("chief") if "step finished" in line])
        cluster.kill("worker 1")
        cluster.wait_for("chief", "step finished", before + 2)  # the other workers continue
        cluster.kill("ps 1")
        cluster.wait_for("chief", "parameter server restarted and recovered")
        cluster.wait_for("ps 1", "shard recovered")
        cluster.hold("ps 0")
        threading.Event().wait(10)  # the length of the pause; no wait depends on it
        cluster.release("ps 0")
        cluster.wait_for("worker 1", "; restarting")
        cluster.wait_for("worker 1", "first step is done", 2)
        cluster.kill("chief")
        cluster.wait_for("chief", "servers hold newer state")
        cluster.hold("chief")
        threading.Event().wait(10)
        cluster.release("chief")
        before = len([line for line in cluster.lines("chief") if "step finished" in line])
        cluster.wait_for("chief", "step finished", before + 2)
        cluster.end("chief")
        assert cluster.wait() is None
        assert [cluster.starts(name) for name in ("ps 0", "ps 1", "worker 1", "chief")] == [1, 2, 2, 2]
    assert len(saved_steps(folder)) > 1


def test_a_crash_ends_the_job_and_the_error_names_process_and_reason(folder: Path) -> None:
    wrong = [*TRAIN, "--dense-optimizer-options", "{speed: 1}"]
    command = ["launch", "local", "--num-ps", 1, "--num-workers", 1, "--", *wrong]
    done = subprocess.run([*PROGRAM, *map(str, command)], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: chief ended with 1: error: ")
    assert "speed" in last
    assert "the other processes were stopped" in last


def test_ctrl_c_ends_all_processes_with_a_checkpoint(folder: Path) -> None:
    command = ["launch", "local", "--num-ps", 1, "--num-workers", 2, "--", *TRAIN, "--epochs", 0]
    launched = subprocess.Popen([*PROGRAM, *map(str, command)], cwd=folder, stderr=subprocess.PIPE, text=True)
    assert launched.stderr is not None
    with launched.stderr:
        said, was_told = [], False
        for line in launched.stderr:
            said.append(line)
            if line.startswith("chief") and "step finished" in line and not was_told:
                launched.send_signal(signal.SIGINT)
                was_told = True
    assert launched.wait(60) == 130, "".join(said)
    assert saved_steps(folder), "".join(said)
    assert not any("Traceback" in line for line in said), "".join(said)


def test_a_second_ctrl_c_ends_all_processes_immediately(folder: Path) -> None:
    command = ["launch", "local", "--num-ps", 1, "--num-workers", 1, "--", *TRAIN, "--epochs", 0]
    launched = subprocess.Popen([*PROGRAM, *map(str, command)], cwd=folder, stderr=subprocess.PIPE, text=True)
    assert launched.stderr is not None
    with launched.stderr:
        said, held = [], None
        for line in launched.stderr:
            said.append(line)
            if line.startswith("chief") and "step finished" in line and held is None:
                children = psutil.Process(launched.pid).children()
                held = next(one for one in children if "--server-type worker" in " ".join(one.cmdline()))
                held.suspend()  # cannot end by itself
                launched.send_signal(signal.SIGINT)
                threading.Timer(1.0, launched.send_signal, [signal.SIGINT]).start()
    assert launched.wait(60) == 130, "".join(said)
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
