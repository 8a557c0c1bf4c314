"""Jobs of several processes that are killed, held, cut off and short of disk: they go on, or say why not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

import training_child as child
from job_processes import JobProcesses
from monolith.artifacts import CheckpointFolder
from monolith.testing.eventually import eventually
from monolith.testing.processes.certificates import Authority
from monolith.testing.processes.cutting_proxy import CuttingProxy
from monolith.testing.processes.zookeeper_server import ZooKeeperServer, why_no_zookeeper
from monolith.training.cluster.launch.local import LocalJob
from process_tree import programs_of

PROGRAM = [sys.executable, "-c", "from monolith.cli.main import main; main()"]


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    return child.write_data(tmp_path_factory.mktemp("data"))


def options(pattern: str, folder: Path, *more: object) -> list[object]:
    return [
        "--task", f"{child.__file__}:Ranker", "--data", pattern, "--batch-size", 40, "--threads", 1, "--epochs", 0,
        "--model-dir", folder / "run", "--save-summary-steps", 0, "--log-step-count-steps", 10,
        "--connect-retries", 600, "--retry-backoff-ms", 100, "--retry-wait-in-secs", 0.2,
        "--restore-sync-poll-interval-ms", 50, "--chief-timeout-secs", 30,
        "--discovery-cleanup-timeout-ms", 60_000, *more,
    ]  # fmt: skip


def by_file(folder: Path) -> list[object]:
    return ["--discovery-type", "file", "--discovery-folder", folder / "cluster"]


def saved_steps(folder: Path) -> list[int]:
    return [one.step for one in CheckpointFolder(folder / "run" / "checkpoints").saved()]


def go_on(job: JobProcesses, name: str) -> None:
    """See that a worker takes further steps."""
    before = job.said(name).count("step finished")
    job.wait_for(name, "step finished", before + 2)


def test_each_process_of_a_job_can_be_killed_and_the_job_goes_on(tmp_path: Path, pattern: str) -> None:
    told = options(pattern, tmp_path, *by_file(tmp_path), "--save-checkpoints-steps", 20)
    with JobProcesses(tmp_path, told, num_ps=2, num_workers=2) as job:
        job.start_all()
        job.wait_for("chief", "checkpoint saved")
        job.wait_for("worker 1", "step finished")

        job.kill("worker 1")
        go_on(job, "chief")
        job.start("worker 1")
        job.wait_for("worker 1", "first step is done", 2)

        job.kill("ps 1")
        job.start("ps 1")
        job.wait_for("ps 1", "shard recovered")
        job.wait_for("chief", "parameter server restarted and recovered")
        go_on(job, "chief")
        go_on(job, "worker 1")

        before = saved_steps(tmp_path)[-1]
        job.kill("chief")
        go_on(job, "worker 1")
        job.start("chief")
        job.wait_for("chief", "servers hold newer state")
        job.wait_for("chief", "first step is done", 2)
        go_on(job, "chief")
        go_on(job, "worker 1")

        job.signal("chief", signal.SIGTERM)
        assert [job.end(name) for name in ("chief", "worker 1", "ps 0", "ps 1")] == [0, 0, 0, 0], job.logs()
    assert saved_steps(tmp_path)[-1] > before, "training resumes where it was"


def test_a_job_reads_on_where_a_signal_ended_a_worker_and_repeats_no_data(tmp_path: Path, pattern: str) -> None:
    told = options(pattern, tmp_path, *by_file(tmp_path))
    positions = []
    for logs, chief_says in (
        ("first", "checkpoint saved"),
        ("again", "the data ends where the last run stopped, nothing was trained"),
    ):
        (tmp_path / logs).mkdir()
        with JobProcesses(tmp_path / logs, told, num_ps=1, num_workers=2) as job:
            job.start("ps 0")
            job.start("chief", "--epochs", 1)
            job.start("worker 1")
            job.wait_for("worker 1", "step finished")
            job.signal("worker 1", signal.SIGTERM)
            assert [job.end(name) for name in ("worker 1", "chief", "ps 0")] == [0, 0, 0], job.logs()
            assert chief_says in job.said("chief")
            assert "job ended with unread data of workers; run the job again workers=[1]" in job.said("chief")
        newest = CheckpointFolder(tmp_path / "run" / "checkpoints").saved()[-1]
        positions.append(json.loads((newest.path / "state.json").read_bytes())["extra"]["workers"])
    assert positions[0]["0"] == positions[1]["0"]
    assert positions[0]["1"] != positions[1]["1"]


def test_a_server_that_is_held_up_holds_up_the_job_and_no_longer(tmp_path: Path, pattern: str) -> None:
    told = options(pattern, tmp_path, *by_file(tmp_path), "--operation-timeout-in-ms", 500)
    with JobProcesses(tmp_path, told) as job:
        job.start_all()
        job.wait_for("chief", "step finished")
        job.signal("ps 0", signal.SIGSTOP)
        threading.Event().wait(2)  # how long it stands still, not what anything waits for
        job.signal("ps 0", signal.SIGCONT)
        go_on(job, "chief")
        assert "parameter server restarted" not in job.said("chief"), "it has lost nothing"
        job.signal("chief", signal.SIGTERM)
        assert [job.end("chief"), job.end("ps 0")] == [0, 0], job.logs()


@pytest.mark.skipif(why_no_zookeeper() is not None, reason=str(why_no_zookeeper()))
@pytest.mark.skipif(sys.platform != "linux", reason="needs a second address of the loopback: 127.0.0.2")
def test_a_job_with_mutual_tls_found_through_zookeeper_outlives_a_cut(
    tmp_path: Path, pattern: str, authority: Authority
) -> None:
    own = authority.sign("job", "IP:127.0.0.1", "IP:127.0.0.2")
    (tmp_path / "token").write_text("s3cret\n")
    security = [
        "--ps-tls-cert", own.cert_file, "--ps-tls-key", own.key_file,
        "--ps-tls-ca", authority.ca_file, "--ps-token-file", tmp_path / "token",
    ]  # fmt: skip
    with ZooKeeperServer() as zookeeper, ExitStack() as stack:
        found = ["--discovery-type", "zookeeper", "--zk-server", zookeeper.address, "--uuid", "a-job"]
        told = options(pattern, tmp_path, *found, *security, "--operation-timeout-in-ms", 500)
        proxied = ["--advertised-host", "127.0.0.2"]
        job = stack.enter_context(JobProcesses(tmp_path, told, num_ps=2, server_options=proxied))
        cable, *_ = [
            stack.enter_context(CuttingProxy(f"127.0.0.1:{port}", host="127.0.0.2", port=port)) for port in job.ports
        ]
        job.start_all()
        job.wait_for("chief", "step finished")
        assert cable.connections > 0, "TLS travels over gRPC, through the proxy"
        for hurt in (cable.cut, cable.hang):
            hurt()
            threading.Event().wait(1)  # how long it lasts, not what anything waits for
            cable.resume()
            go_on(job, "chief")
        job.signal("chief", signal.SIGTERM)
        assert [job.end(name) for name in ("chief", "ps 0", "ps 1")] == [0, 0, 0], job.logs()
    assert "parameter server restarted" not in job.said("chief")
    assert saved_steps(tmp_path)


@pytest.mark.parametrize("whose", ["chief", "ps 1"])
def test_a_full_disk_is_said_and_the_last_good_checkpoint_stays(tmp_path: Path, pattern: str, whose: str) -> None:
    first = options(pattern, tmp_path, *by_file(tmp_path), "--max-steps", 20)
    with JobProcesses(tmp_path, first, num_ps=2) as job:
        job.start_all()
        assert [job.end(name) for name in ("chief", "ps 0", "ps 1")] == [0, 0, 0], job.logs()
    assert saved_steps(tmp_path) == [20]
    second = options(pattern, tmp_path, *by_file(tmp_path), "--max-steps", 60)
    with JobProcesses(tmp_path, second, num_ps=2) as job:
        for name in ("ps 0", "ps 1", "chief"):
            job.start(name, largest_file=2000 if name == whose else None)
        assert job.end("chief") == 1, job.logs()
        last = job.said("chief").splitlines()[-1]
        assert last.startswith("error: "), job.logs()
        assert str(tmp_path / "run") in last, "it names the file"
        assert "Traceback" not in job.said("chief")
    assert saved_steps(tmp_path) == [20], "the checkpoint before is as it was"


def test_a_process_that_does_not_end_says_where_it_stands(tmp_path: Path) -> None:
    said: list[tuple[str, str]] = []
    with LocalJob(
        ["train", "--task", "deepfm", "--model-dir", str(tmp_path / "run")],
        num_ps=1,
        num_workers=1,
        say=lambda name, line, is_out: said.append((name, line)),
        folder=tmp_path,
        grace_s=0.5,
    ) as job:
        job.signal("ps 0", signal.SIGSTOP)
    assert any(name == "ps 0" and "roles/server.py" in line for name, line in said), said


def test_a_killed_launcher_leaves_no_process_behind(tmp_path: Path, pattern: str) -> None:
    told = [str(each) for each in options(pattern, tmp_path)]
    command = [*PROGRAM, "launch", "local", "--num-ps", "1", "--num-workers", "1", "--", "train", *told]
    with (tmp_path / "log").open("w") as log:
        launched = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PYTHONFAULTHANDLER": "1"})
    try:
        log = tmp_path / "log"
        eventually(lambda: "step finished" in log.read_text() or launched.poll() is not None)
        assert launched.poll() is None, log.read_text()
        children = programs_of(launched.pid)
        assert len(children) == 2
    finally:
        launched.kill()
        launched.wait()
    _, alive = psutil.wait_procs(children, timeout=120)
    for one in alive:
        one.send_signal(signal.SIGABRT)
    assert not alive, (tmp_path / "log").read_text()
    assert saved_steps(tmp_path), "the chief has saved before it went"
