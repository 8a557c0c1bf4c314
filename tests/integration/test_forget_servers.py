"""``forget`` on a job of two parameter servers and two workers: removal, delta logs, followers and recovery."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import counting_model
import monolith as mt
from monolith.artifacts import CheckpointFolder
from monolith.artifacts.delta_log import segment_numbers, segment_path, written_ids
from monolith.core.clock import SystemClock
from monolith.discovery import MemoryDiscovery, MemoryRegistry, ServiceInfo
from monolith.embedding import MultiTable
from monolith.embedding.specs import JOB_TABLES
from monolith.ps import Security, ServerConfig
from monolith.sync import Follower
from monolith.testing.eventually import eventually
from monolith.testing.fakes.published import FollowedTables
from monolith.testing.processes.ps_servers import PsServers
from monolith.training.cluster import DistributedConfig, run_role
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.cluster.roles.worker import train_worker
from monolith.training.cluster.stop_event import StopEventHook
from monolith.training.control.client import ControllerClient

ROWS = 60
USERS = ["3", "4"]  # one on each server
IDS = [mt.fid.make_v2(1, int(user)) for user in USERS]


def start(
    pool: ThreadPoolExecutor, servers: PsServers, config: ClusterJobConfig, end: threading.Event
) -> list[Future[Any]]:
    """Run both workers in threads."""
    registry = MemoryRegistry()
    names = MemoryDiscovery(registry)
    names.connect()
    for index, address in enumerate(servers.addresses):
        host, _, port = address.rpartition(":")
        names.register(ServiceInfo(service_type="ps", index=index, host=host, port=int(port), id=f"ps-{index}"))

    def worker(index: int) -> Any:
        process = DistributedConfig(num_ps=2, num_workers=2, index=index, retry_backoff_ms=20)
        hooks = [StopEventHook(end, "the test ends the job")] if index == 0 else []
        role = lambda session: train_worker(  # noqa: E731
            session, replace(config, index=index), Security(), hooks=hooks
        )
        return run_role(MemoryDiscovery(registry), process, role)

    return [pool.submit(worker, index) for index in range(2)]


def has_rows(servers: PsServers) -> list[bool]:
    return [bool(servers.servers[fid % 2].tables["user_id"].contains([fid]).any()) for fid in IDS]


def test_forgotten_ids_leave_all_servers_and_stay_away_while_blocked(tmp_path: Path) -> None:
    run, published = tmp_path / "run", tmp_path / "published"
    config = ClusterJobConfig(
        task=f"{counting_model.__file__}:Counter", data=counting_model.write_files(tmp_path, [ROWS // 2, ROWS // 2]),
        model_dir=str(run), publish_dir=str(published), publish_interval_s=0.05, batch_size=5, threads=1, epochs=0,
        log_step_count_steps=0, save_summary_steps=0, num_ps=2, num_workers=2, restore_sync_poll_interval_ms=20,
        retry_wait_in_secs=0.05, force_shutdown_ps=False, controller_port=0,
    )  # fmt: skip
    end = threading.Event()
    durable = ServerConfig(delta_log=run / "delta_log", delta_interval_s=0.05)
    with PsServers(2, durable) as servers, ThreadPoolExecutor(2) as pool:
        workers = start(pool, servers, config, end)
        try:
            eventually(lambda: (has_tables(servers) and all(has_rows(servers))) or any(each.done() for each in workers))
            assert not any(each.done() for each in workers), [each.exception() for each in workers if each.done()]
            with ControllerClient(run, timeout_s=60, save_timeout_s=60) as client:
                receipt = client.forget(USERS, features=["user_id"], block=True)
                steps = client.training_status()
                eventually(lambda: client.training_status() > steps + 2 * ROWS // 5, timeout_s=60)  # all data again
            assert has_rows(servers) == [False, False]
        finally:
            end.set()
        for worker in workers:
            worker.result(120)
    assert [row.had_row for row in receipt.rows] == [True, True]
    assert receipt.is_complete
    assert [each.kind for each in receipt.remaining] == []
    newest = CheckpointFolder(run / "checkpoints").newest()
    assert newest is not None
    saved = MultiTable.load(newest.path / "tables", without=JOB_TABLES)
    assert not saved["user_id"].contains(IDS).any()
    assert len(saved["user_id"]) == ROWS - 2
    for index in range(2):
        log = run / "delta_log" / f"ps_{index}"
        written = [written_ids(segment_path(log, number))["user_id"] for number in segment_numbers(log)]
        assert not any(fid in each for fid in IDS for each in written)
    late = FollowedTables(MultiTable(counting_model.Counter().declaration.table_specs()).to_serving())
    assert Follower(published, late, clock=SystemClock()).step()
    assert not late.tables["user_id"].contains(IDS).any()
    assert len(late.tables["user_id"]) == ROWS - 2


def has_tables(servers: PsServers) -> bool:
    return all(server.tables.find("user_id") is not None for server in servers.servers)
