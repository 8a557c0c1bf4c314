"""Training on parameter servers, in this process: the same bytes as with local tables, and checkpoints that move."""

from __future__ import annotations

import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

import training_child as child
from monolith.artifacts import CheckpointFolder
from monolith.discovery import MemoryDiscovery, MemoryRegistry
from monolith.ps import Security, ServerConfig
from monolith.testing.processes.ps_servers import PsServers
from monolith.training.cluster import DistributedConfig, Session, run_role
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.cluster.model_folder import newest_tables
from monolith.training.cluster.roles.server import serve, server_config
from monolith.training.cluster.roles.worker import train_worker
from monolith.training.cluster.worker_job import connect
from monolith.training.hooks import Hook
from monolith.training.runner import Job

TASK = f"{child.__file__}:Ranker"


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    return child.write_data(tmp_path_factory.mktemp("data"))


def settings(pattern: str, model_dir: Path, **values: Any) -> ClusterJobConfig:
    fixed = {"task": TASK, "data": pattern, "batch_size": 40, "deterministic": True, "threads": 1, "shuffle_buffer": 50,
             "log_step_count_steps": 0, "save_summary_steps": 0, "num_ps": 2}  # fmt: skip
    return ClusterJobConfig(model_dir=str(model_dir), **{**fixed, **values})


def trained(model_dir: Path) -> dict[str, Any]:
    """All that a checkpoint holds, whoever wrote it."""
    newest = CheckpointFolder(model_dir / "checkpoints").newest()
    assert newest is not None
    made = child.estimator(model_dir)
    assert made.step == newest.step
    found = child.fingerprint(made)
    # A summary of everything but how the optimizer's settings are laid out, which never differs.
    return {key: found[key] for key in ("step", "weights", "optimizer", "tables", "data", "metrics", "random")}


@pytest.mark.parametrize("transport", ["data_plane", "grpc"])
def test_one_worker_gives_the_same_bytes_as_local_tables(transport: str, tmp_path: Path, pattern: str) -> None:
    Job(settings(pattern, tmp_path / "local", max_steps=12, num_ps=0)).train()
    with PsServers(2, ServerConfig(data_plane=transport == "data_plane")) as servers:
        connect(servers.addresses, settings(pattern, tmp_path / "remote", max_steps=12), Security()).train()
    assert trained(tmp_path / "remote") == trained(tmp_path / "local")


def test_a_training_moves_from_two_servers_to_three_and_to_local_tables(tmp_path: Path, pattern: str) -> None:
    Job(settings(pattern, tmp_path / "local", max_steps=15, num_ps=0)).train()
    moved = tmp_path / "moved"
    with PsServers(2) as servers:
        connect(servers.addresses, settings(pattern, moved, max_steps=5), Security()).train()
    with PsServers(3) as servers:
        connect(servers.addresses, settings(pattern, moved, max_steps=10, num_ps=3), Security()).train()
    Job(settings(pattern, moved, max_steps=15, num_ps=0)).train()
    assert trained(moved) == trained(tmp_path / "local")


def test_a_worker_finds_the_servers_of_its_job_and_ends_them(tmp_path: Path, pattern: str) -> None:
    registry = MemoryRegistry()
    config = settings(pattern, tmp_path / "run", max_steps=4)

    def server(index: int) -> None:
        process = DistributedConfig(role="ps", index=index, num_ps=2)
        told = server_config(process, Security(), config.run.model_dir)
        run_role(MemoryDiscovery(registry), process, lambda session: serve(session, told, SimpleQueue()))

    def worker(session: Session) -> dict[str, float]:
        return train_worker(session, config, Security())

    servers = [threading.Thread(target=server, args=(index,)) for index in range(2)]
    for thread in servers:
        thread.start()
    process = DistributedConfig(num_ps=2, connect_retries=200, retry_backoff_ms=20)
    metrics = run_role(MemoryDiscovery(registry), process, worker)
    for thread in servers:
        thread.join(30)
    assert not any(thread.is_alive() for thread in servers), "the chief ends the servers with the job"
    assert registry.read("ps") == registry.read("worker") == []
    assert "click/auc" in metrics
    assert trained(tmp_path / "run")["step"] == 4


def test_a_server_that_comes_back_has_the_rows_of_its_last_checkpoint_and_others_keep_theirs(
    tmp_path: Path, pattern: str
) -> None:
    run = tmp_path / "run"
    config = settings(pattern, run, max_steps=10, save_checkpoints_steps=5, background_save=False)
    rows: dict[str, tuple[int, ...]] = {}

    class Lose(Hook):
        def after_step(self, run: Any, result: Any) -> None:
            if result.step == 7:
                rows["before"] = tuple(server.tables.rows for server in servers.servers)
                servers.restart(1, ServerConfig(recover_from=newest_tables(config.run.model_dir)))
                rows["after"] = tuple(server.tables.rows for server in servers.servers)

    with PsServers(2) as servers:
        connect(servers.addresses, config, Security(), hooks=[Lose()]).train()
    saved = {one.step: one.manifest.tables for one in CheckpointFolder(run / "checkpoints").saved()}
    assert rows["after"][0] == rows["before"][0]
    assert 0 < rows["after"][1] < rows["before"][1], "what it had learnt since the checkpoint is gone"
    assert sum(saved[10].values()) > sum(saved[5].values())
    assert np.isfinite(list(trained(run)["metrics"].values())).all()
