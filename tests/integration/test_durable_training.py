"""Jobs whose servers keep delta logs: what a lost server, a lost job and a lost beginning go on from."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import training_child as child
from monolith.artifacts import CheckpointFolder
from monolith.artifacts.delta_log import DeltaReader
from monolith.core.clock import SystemClock
from monolith.ps import ParameterServer, RemoteStore, Security, ServerConfig
from monolith.testing.processes.ps_servers import PsServers
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.cluster.job_state import JobState, WorkerEntry, WorkerPhase, job_state_specs
from monolith.training.cluster.model_folder import newest_tables
from monolith.training.cluster.server_connection import ServerConnection
from monolith.training.cluster.worker_job import connect
from monolith.training.hooks import Hook
from monolith.training.runner import Job

TASK = f"{child.__file__}:Ranker"
NEVER = 1e6
"""Segments are written when the test says so."""


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    return child.write_data(tmp_path_factory.mktemp("data"))


def settings(pattern: str, model_dir: Path, **values: Any) -> ClusterJobConfig:
    fixed = {"task": TASK, "data": pattern, "batch_size": 40, "deterministic": True, "threads": 1, "shuffle_buffer": 50,
             "log_step_count_steps": 0, "save_summary_steps": 0, "num_ps": 2, "background_save": False}  # fmt: skip
    return ClusterJobConfig(model_dir=str(model_dir), **{**fixed, **values})


def servers_of(model_dir: Path) -> ServerConfig:
    """What the servers of a job are told when they start."""
    return ServerConfig(
        recover_from=newest_tables(model_dir), delta_log=model_dir / "delta_log", delta_interval_s=NEVER
    )


def trained(model_dir: Path) -> dict[str, Any]:
    made = child.estimator(model_dir)
    assert made.step > 0
    found = child.fingerprint(made)
    return {key: found[key] for key in ("step", "weights", "optimizer", "tables", "data", "metrics", "random")}


class Crash(Exception):
    """The end of a whole job, without a word."""


class CrashHook(Hook):
    """Makes the servers' logs durable at one step, and ends everything at a later one."""

    def __init__(self, servers: PsServers, step: int) -> None:
        self._servers = servers
        self._step = step

    def after_step(self, run: Any, result: Any) -> None:
        if result.step == self._step - 1:
            for server in self._servers.servers:
                assert server._log is not None
                server._log.flush()
        if result.step == self._step:
            for server in self._servers.servers:
                assert server._log is not None
                server._log.close()
            raise Crash


@pytest.mark.parametrize(("checkpoint", "crash"), [(5, 8), (100, 4)])
def test_a_job_that_was_lost_as_a_whole_goes_on_from_its_checkpoint_and_counts_no_sample_twice(
    tmp_path: Path, pattern: str, checkpoint: int, crash: int
) -> None:
    Job(settings(pattern, tmp_path / "local", max_steps=12, num_ps=0)).train()
    run = tmp_path / "run"
    config = settings(pattern, run, max_steps=12, save_checkpoints_steps=checkpoint)
    with PsServers(2, servers_of(run)) as servers, pytest.raises(Crash):
        connect(servers.addresses, config, Security(), hooks=[CrashHook(servers, crash)]).train()
    with PsServers(2, servers_of(run)) as servers:
        connect(servers.addresses, config, Security()).train()
        newest = DeltaReader(run / "delta_log" / "ps_0").segments()
        assert len(newest) <= 2, "the checkpoint at the end covers the others"
    assert trained(run) == trained(tmp_path / "local")


def rows_of(server: ParameterServer) -> dict[str, list[bytes]]:
    """All that a server's tables hold, optimizer states too; admission counts are not in a log."""
    found = {}
    for table in server.tables.all:
        native = table._native
        ids = np.sort(np.concatenate([native.part_ids(part) for part in range(native.parts)]))
        found[table.spec.name] = [np.asarray(array).tobytes() for array in native.raw_rows(ids)]
    return found


def test_a_server_that_is_lost_in_the_middle_brings_back_what_was_durable_and_others_keep_theirs(
    tmp_path: Path, pattern: str
) -> None:
    run = tmp_path / "run"
    config = settings(pattern, run, max_steps=10, save_checkpoints_steps=5)
    seen = []

    class Lose(Hook):
        def after_step(self, run: Any, result: Any) -> None:
            if result.step not in (3, 7):  # before the first checkpoint, and after it
                return
            log = servers.servers[1]._log
            assert log is not None
            log.flush()
            log.close()
            before = [rows_of(server) for server in servers.servers]
            servers.restart(1, servers_of(Path(config.run.model_dir)))
            run.store.pull({next(iter(run.store.specs)): np.arange(2)})  # before a checkpoint it needs to be told
            seen.append([rows_of(server) for server in servers.servers] == before)

    with PsServers(2, servers_of(run)) as servers:
        connect(servers.addresses, config, Security(), hooks=[Lose()]).train()
    assert seen == [True, True]
    assert [saved.step for saved in CheckpointFolder(run / "checkpoints").saved()] == [5, 10]


def test_recovered_servers_hold_no_live_training(tmp_path: Path, pattern: str) -> None:
    config = settings(pattern, tmp_path, num_workers=2)
    told = ServerConfig(delta_log=tmp_path / "delta_log", delta_interval_s=NEVER)

    def is_live(addresses: Sequence[str]) -> bool:
        with closing(ServerConnection(addresses, replace(config, index=1), Security(), SystemClock())) as connection:
            connection.open([])
            return connection.is_live

    with (
        PsServers(2, told) as servers,
        RemoteStore(servers.addresses, job_state_specs(), on_restart=lambda _: None) as store,
    ):
        rows = JobState(store, 0, 2, 4)
        rows.add(np.ones(4, np.float32), WorkerEntry(WorkerPhase.READY, 1, 7))
        assert is_live(servers.addresses)
        store.flush_deltas()
        for index in range(2):
            servers.restart(index)
        assert rows.read()[0] == WorkerEntry(WorkerPhase.READY, 1, 7), "the servers have recovered what the chief said"
        assert not is_live(servers.addresses)
        rows.add(np.ones(4, np.float32), WorkerEntry(WorkerPhase.READY, 1, 8))
        assert is_live(servers.addresses)
        servers.restart(0)
        assert is_live(servers.addresses), "one lost server does not end a training"
