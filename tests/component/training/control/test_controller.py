from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from fake_run import FakeRun
from monolith.core.errors import ClusterError, ConfigError, NoSuchService, ShardUnavailable
from monolith.training.control import BlockStatus, address_path, messages, read_address
from monolith.training.control.client import ControllerClient
from monolith.training.control.pause import WorkerStatus
from monolith.training.hooks import Barrier, BarrierHook, ControllerHook

MANY = 10**9
RUNNING = BlockStatus(blocked=(), unblocked=(0,))
HELD = BlockStatus(blocked=(0,), unblocked=())


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FakeRun]:
    """A run under way, with a controller."""
    run = FakeRun(tmp_path / "model", [ControllerHook(grace_s=0.0)])
    thread = threading.Thread(target=run.train, args=(MANY,))
    thread.start()
    run.wait(lambda: run.step > 0)
    yield run
    run.stop("the test is over")
    run.resume()
    thread.join()


@pytest.fixture
def client(run: FakeRun) -> Iterator[ControllerClient]:
    with ControllerClient(run.model_dir) as client:
        yield client


def test_stop_status_resume(run: FakeRun, client: ControllerClient) -> None:
    assert client.block_status() == RUNNING
    client.stop_training()
    run.wait(lambda: run.is_paused)
    assert client.block_status() == HELD
    assert client.training_status() == run.step
    with pytest.raises(ClusterError, match=r"is paused.*ALREADY_EXISTS"):
        client.stop_training()
    client.resume_training()
    run.wait(lambda: not run.is_paused)
    assert client.block_status() == RUNNING
    client.resume_training()
    client.stop_training()


def test_a_checkpoint_is_saved_when_the_call_returns_running_or_held(run: FakeRun, client: ControllerClient) -> None:
    client.save_checkpoint()
    assert [reason for _, reason in run.saved] == ["controller"]
    client.stop_training()
    run.wait(lambda: run.is_paused)
    client.save_checkpoint()
    assert run.saved[1] == (run.step, "controller")


def test_a_failed_save_tells_the_caller_why_and_the_training_goes_on(run: FakeRun, client: ControllerClient) -> None:
    run.save_error = OSError("No space left on device")
    with pytest.raises(ClusterError, match="No space left on device"):
        client.save_checkpoint()
    before = client.training_status()
    run.wait(lambda: run.step > before)


def test_the_status_is_told_while_a_save_is_under_way(tmp_path: Path) -> None:
    is_safe = threading.Event()

    class SlowRun(FakeRun):
        def save(self, reason: str) -> Path:
            is_safe.wait()
            return super().save(reason)

    run = SlowRun(tmp_path, [ControllerHook(grace_s=0.0)])
    thread = threading.Thread(target=run.train, args=(MANY,))
    thread.start()
    run.wait(lambda: run.step > 0)
    with ControllerClient(tmp_path) as client:
        saving = threading.Thread(target=client.save_checkpoint)
        saving.start()
        assert client.training_status() > 0
        is_safe.set()
        saving.join()
    run.stop("the test is over")
    thread.join()
    assert len(run.saved) == 1


def test_an_error_of_the_watch_reaches_the_caller_without_a_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def watch() -> tuple[WorkerStatus, ...]:
        raise ShardUnavailable("GetJobState at 127.0.0.1:1: no server answers")

    run = FakeRun(tmp_path, [ControllerHook(grace_s=0.0, workers=watch)])
    thread = threading.Thread(target=run.train, args=(MANY,))
    thread.start()
    try:
        run.wait(lambda: run.step > 0)
        with (
            ControllerClient(run.model_dir) as client,
            pytest.raises(ClusterError, match=r"GetJobState at 127\.0\.0\.1:1: no server answers"),
        ):
            client.training_status()
    finally:
        run.stop("the test is over")
        thread.join()
    assert not [record for record in caplog.records if record.exc_info]


def test_the_original_clients_name_of_the_service_is_answered(run: FakeRun) -> None:
    with grpc.insecure_channel(read_address(run.model_dir)) as channel:
        call = channel.unary_unary("/Controller/GetTrainingStatus")
        answer = messages.GetTrainingStatusResponse.FromString(call(b""))
    assert answer.global_step > 0


def test_a_barrier_holds_all_workers(tmp_path: Path) -> None:
    barrier = Barrier(2)
    chief = FakeRun(tmp_path, [ControllerHook(pause_control=barrier, grace_s=0.0), BarrierHook(barrier, 0)])
    other = FakeRun(tmp_path / "other", [BarrierHook(barrier, 1)])
    threads = [threading.Thread(target=run.train, args=(MANY,)) for run in (chief, other)]
    for thread in threads:
        thread.start()
    chief.wait(lambda: chief.step > 0)
    with ControllerClient(tmp_path) as client:
        client.stop_training()
        barrier.wait_until_blocked(20.0)
        assert client.block_status() == BlockStatus(blocked=(0, 1), unblocked=())
        with pytest.raises(ClusterError, match="ALREADY_EXISTS"):
            client.stop_training()
        client.save_checkpoint()
        client.resume_training()
    for run in (chief, other):
        run.stop("the test is over")
    for thread in threads:
        thread.join()


def test_the_address_is_there_while_the_run_lasts(tmp_path: Path) -> None:
    hook = ControllerHook(grace_s=0.0)
    run = FakeRun(tmp_path, [hook])
    hook.on_start(run)
    assert address_path(tmp_path).read_text() == hook.address
    client = ControllerClient(tmp_path)
    hook.on_end(run, None)
    assert not address_path(tmp_path).exists()
    assert hook.address == ""
    with pytest.raises(NoSuchService, match="may have ended"):
        client.training_status()
    client.close()
    with pytest.raises(NoSuchService, match="controller_port 0"):
        ControllerClient(tmp_path)


def test_another_trainings_address_is_left_alone(tmp_path: Path) -> None:
    hook = ControllerHook(grace_s=0.0)
    run = FakeRun(tmp_path, [hook])
    hook.on_start(run)
    address_path(tmp_path).write_text("127.0.0.1:1")
    hook.on_end(run, None)
    assert address_path(tmp_path).read_text() == "127.0.0.1:1"


def test_a_port_that_is_taken_is_named(tmp_path: Path, run: FakeRun) -> None:
    port = int(read_address(run.model_dir).rpartition(":")[2])
    with pytest.raises(ClusterError, match=rf"127\.0\.0\.1:{port}.*free port"):
        ControllerHook(port).on_start(FakeRun(tmp_path / "second"))
    assert not address_path(tmp_path / "second").exists()


def test_no_port_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="70000"):
        ControllerHook(70000).on_start(FakeRun(tmp_path))


@pytest.mark.parametrize("target", ["localhost:8080", "10.0.0.1:1", "[::1]:5"])
def test_an_address_is_its_own_address(target: str) -> None:
    assert read_address(target) == target


@pytest.mark.parametrize("target", ["nothing/here", "nowhere", "a/b:80"])
def test_a_folder_without_a_training_says_so(target: str) -> None:
    with pytest.raises(NoSuchService, match="no training with a controller"):
        read_address(target)


@pytest.mark.parametrize(("host", "is_reported"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_a_controller_beyond_loopback_logs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, host: str, is_reported: bool
) -> None:
    hook, run = ControllerHook(host=host, grace_s=0.0), FakeRun(tmp_path / "model", [])
    hook.on_start(run)
    try:
        assert ("server reachable without token and TLS" in caplog.text) == is_reported
    finally:
        hook.on_end(run, None)
