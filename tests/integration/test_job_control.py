"""The chief acts for the whole job: it holds, saves and tells of all workers; a lost server may take all back."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import counting_model
from monolith.artifacts import CheckpointFolder
from monolith.core.errors import RpcTimeout
from monolith.discovery import MemoryDiscovery, MemoryRegistry, ServiceInfo
from monolith.ps import Security, ServerConfig
from monolith.testing import FakeClock
from monolith.testing.eventually import eventually
from monolith.testing.processes.ps_servers import PsServers
from monolith.training.cluster import DistributedConfig, Session, run_role
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.cluster.model_folder import newest_tables
from monolith.training.cluster.roles.worker import _find_servers, train_worker
from monolith.training.cluster.stop_event import StopEventHook
from monolith.training.control.client import ControllerClient
from monolith.training.hooks import Hook

TASK = f"{counting_model.__file__}:Counter"


def settings(pattern: str, model_dir: Path, **values: Any) -> ClusterJobConfig:
    fixed = {"task": TASK, "data": pattern, "batch_size": 5, "threads": 1, "log_step_count_steps": 0,
             "save_summary_steps": 0, "num_ps": 2, "num_workers": 2, "restore_sync_poll_interval_ms": 20,
             "retry_wait_in_secs": 0.05, "force_shutdown_ps": False}  # fmt: skip
    return ClusterJobConfig(model_dir=str(model_dir), **{**fixed, **values})


def start(
    pool: ThreadPoolExecutor, servers: PsServers, config: ClusterJobConfig, hooks: dict[int, list[Hook]]
) -> list[Future[dict[str, float]]]:
    """Run all workers in threads, as their processes would."""
    registry = MemoryRegistry()
    names = MemoryDiscovery(registry)
    names.connect()
    for index, address in enumerate(servers.addresses):
        host, _, port = address.rpartition(":")
        names.register(ServiceInfo(service_type="ps", index=index, host=host, port=int(port), id=f"ps-{index}"))

    def worker(index: int) -> dict[str, float]:
        process = DistributedConfig(num_ps=2, num_workers=2, index=index, retry_backoff_ms=20)
        own = replace(config, index=index)
        role = lambda session: train_worker(session, own, Security(), hooks=hooks.get(index, []))  # noqa: E731
        return run_role(MemoryDiscovery(registry), process, role)

    return [pool.submit(worker, index) for index in range(2)]


class Reach(Hook):
    """Tells when a run has taken a step for the n-th time."""

    def __init__(self, steps: int) -> None:
        self.reached = threading.Event()
        self._left = steps

    def after_step(self, run: Any, result: Any) -> None:
        self._left -= 1
        if self._left <= 0:
            self.reached.set()


def test_the_controller_of_the_chief_holds_saves_and_tells_of_all_workers(tmp_path: Path) -> None:
    pattern = counting_model.write_files(tmp_path, [200, 200])
    config = settings(pattern, tmp_path / "run", epochs=0, controller_port=0)
    end = threading.Event()
    reached = {index: Reach(3) for index in range(2)}
    with PsServers(2) as servers, ThreadPoolExecutor(2) as pool:
        stop = StopEventHook(end, "the launcher ends the job")  # at the chief: all workers end
        workers = start(pool, servers, config, {0: [reached[0], stop], 1: [reached[1]]})
        try:
            for index, hook in reached.items():
                eventually(lambda hook=hook, worker=workers[index]: hook.reached.is_set() or worker.done())
                assert not workers[index].done(), workers[index].exception()
            with ControllerClient(tmp_path / "run") as client:
                client.stop_training()
                eventually(lambda: not client.block_status().unblocked)
                held = client.worker_status()
                assert [one.state for one in held] == ["held", "held"]
                assert client.training_status() == sum(one.step for one in held) >= 6
                client.save_checkpoint()  # also while they stand still
                assert client.worker_status() == held
                client.resume_training()
                eventually(
                    lambda: all(now.step > then.step for now, then in zip(client.worker_status(), held, strict=True))
                )
                assert client.block_status().unblocked == (0, 1)
        finally:
            end.set()
        for worker in workers:
            worker.result(120)
    saved = CheckpointFolder(tmp_path / "run" / "checkpoints").saved()
    assert [one.manifest.reason for one in saved] == ["controller", "at the end"]


def test_a_lost_server_takes_the_whole_job_back_when_it_is_to(tmp_path: Path) -> None:
    rows = [300, 300]
    pattern = counting_model.write_files(tmp_path, rows)
    config = settings(pattern, tmp_path / "run", partial_recovery=False, save_checkpoints_steps=20)
    folder = CheckpointFolder(tmp_path / "run" / "checkpoints")
    lost = threading.Event()

    class Lose(Hook):
        def after_step(self, run: Any, result: Any) -> None:
            if result.step >= 30 and folder.saved() and not lost.is_set():
                lost.set()
                servers.restart(1, ServerConfig(recover_from=newest_tables(config.run.model_dir)))

    with PsServers(2) as servers, ThreadPoolExecutor(2) as pool:
        for worker in start(pool, servers, config, {0: [Lose()]}):
            worker.result(200)
    assert lost.is_set()
    seen = counting_model.counts(tmp_path / "run", sum(rows))
    assert seen.min() >= 1, "what the tables forgot was read again"
    assert seen.max() <= 3, "once more what was read since the places that the checkpoint has, and steps under way"


def test_a_worker_goes_on_looking_for_servers_that_are_late(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    registry, clock = MemoryRegistry(), FakeClock()
    discovery = MemoryDiscovery(registry)
    discovery.connect()
    session = Session(discovery, DistributedConfig(num_ps=1, connect_retries=1))
    config = ClusterJobConfig(num_ps=1, session_creation_timeout_secs=60, retry_wait_in_secs=5)
    with pytest.raises(RpcTimeout, match="Timed out waiting for PS discovery"):
        _find_servers(session, config, clock)
    assert clock.monotonic_s() == pytest.approx(60, abs=6)
    assert "servers not found, retrying error=Timed out waiting for PS discovery" in caplog.text
    discovery.register(ServiceInfo(service_type="ps", index=0, host="127.0.0.1", port=7, id="ps-0"))
    assert _find_servers(session, config, clock) == ("127.0.0.1:7",)
