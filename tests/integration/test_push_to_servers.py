"""Rows of a run, with tables of its own and on parameter servers, pushed to model servers that do not follow it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import monolith as mt
import publishing_child as child
import training_child
from commands import Command, Shell, wait_until
from monolith.artifacts import CheckpointFolder
from monolith.core.errors import MonolithError
from monolith.demo.world.files import write_records
from monolith.embedding import MultiTable
from monolith.export import export_model
from monolith.ps import Security, ServerConfig
from monolith.serving import Client, ModelConfig, ModelServer, ServingConfig, servable_loader
from monolith.testing.processes.ps_servers import PsServers
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.cluster.worker_job import connect


class Served:
    """A model server as a process."""

    def __init__(self, shell: Shell, port: int = 0) -> None:
        command = shell.start(
            *("serve", shell.folder / "exports", "--name", "clicks", "--port", port, "--rest-port", -1, "--json"),
            "--allow-assign",
        )
        self.command: Command = command
        wait_until(lambda: command.out.exists() and command.out.read_text().endswith("}\n"), command)
        self.address = json.loads(command.out.read_text())["address"]
        self.client = Client(self.address, model="clicks", timeout_s=60)
        wait_until(lambda: any(each.state == "AVAILABLE" for each in self.client.status()), command)

    def rows(self, table: str, ids: Any) -> np.ndarray[Any, Any]:
        return self.client.predict({table: np.asarray(ids, np.int64)}, signature="lookup")[table]

    def kill(self) -> None:
        self.client.close()
        process = self.command.process
        if process.is_alive():
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
        process.join()


def all_rows(folder: Path) -> dict[str, tuple[Any, Any]]:
    """Ids and rows of the newest checkpoint, as they are served."""
    newest = CheckpointFolder(folder / "checkpoints").newest()
    assert newest is not None
    tables = MultiTable.load(newest.path / "tables").to_serving()
    found = {name: list(tables[name].items()) for name in tables}
    return {
        name: (np.concatenate([ids for ids, _ in lots]), np.concatenate([rows for _, rows in lots]))
        for name, lots in found.items()
    }


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    made = mt.Estimator(child.Clicker)
    export_model(made.model, made.store, tmp_path / "exports", name="clicks", step=0, version=1)
    with mt.data.RecordWriter(tmp_path / "clicks.pb") as writer:
        write_records(child.CLICKS, writer, batch_rows=64)
    return Shell(tmp_path)


@pytest.fixture
def servers(shell: Shell) -> Iterator[list[Served]]:
    made = [Served(shell), Served(shell)]
    yield made
    for each in made:
        each.kill()


def test_two_servers_have_the_rows_of_a_run_though_one_was_killed_meanwhile(
    shell: Shell, servers: list[Served]
) -> None:
    steady, killed = servers
    trainer = shell.start(
        *("train", "--task", f"{child.__file__}:Clicker", "--data", shell.folder / "clicks.pb", "--epochs", 0),
        *("--batch-size", 32, "--threads", 1, "--model-dir", shell.folder / "run", "--publish-interval-s", 0.1),
        *("--sync-targets", f"{steady.address},http://{killed.address}/", "--sync-model-name", "clicks"),
        *("--log-step-count-steps", 0, "--save-summary-steps", 0, "--save-checkpoints-steps", 300),
    )
    try:
        probe = _first_ids(shell, trainer)
        wait_until(lambda: bool(steady.rows(*probe).any() and killed.rows(*probe).any()), trainer)
        killed.kill()
        now = steady.rows(*probe)
        wait_until(lambda: not np.array_equal(now, steady.rows(*probe)), trainer)
        servers[1] = again = Served(shell, int(killed.address.rpartition(":")[2]))
        wait_until(lambda: bool(again.rows(*probe).any()), trainer)
        assert trainer.process.pid is not None
        os.kill(trainer.process.pid, signal.SIGTERM)
        assert trainer.end() == 0, trainer.err.read_text()
    finally:
        if trainer.process.is_alive():
            trainer.process.kill()
            trainer.process.join()
    for table, (ids, rows) in all_rows(shell.folder / "run").items():
        for server in (steady, again):
            np.testing.assert_array_equal(server.rows(table, ids), rows)


def _first_ids(shell: Shell, trainer: Command) -> tuple[str, Any]:
    """A table and some ids that the trainer has learnt: those of the first segment that has any."""
    from monolith.artifacts.delta_log import DeltaReader, changed_ids, read_cut, shard_folder

    published = shell.folder / "run" / "published"
    found: list[tuple[str, Any]] = []

    def look() -> bool:
        if read_cut(published) is None:
            return False
        try:
            for segment in DeltaReader(shard_folder(published, 0, 1)).segments():
                found.extend((table, ids[:16]) for table, ids in changed_ids(segment.path).items() if len(ids))
        except (MonolithError, OSError):  # it was removed meanwhile
            return False
        return bool(found)

    wait_until(look, trainer)
    return found[0]


def test_a_job_on_parameter_servers_pushes_too(tmp_path: Path) -> None:
    made = mt.Estimator(training_child.Ranker)
    export_model(made.model, made.store, tmp_path / "exports", name="ranker", step=0, version=1)
    config = ServingConfig(
        models=[ModelConfig(name="default", base_path=tmp_path / "exports")], port=0, rest_port=None, allow_assign=True
    )
    run = tmp_path / "run"
    (tmp_path / "data").mkdir()
    with (
        ModelServer(config, servable_loader(None, threads=1)) as server,
        PsServers(2, ServerConfig(delta_log=run / "delta_log", delta_interval_s=0.05)) as tables,
    ):
        assert server.models.wait_until_settled(60)
        job = ClusterJobConfig(
            task=f"{training_child.__file__}:Ranker",
            data=training_child.write_data(tmp_path / "data"),
            batch_size=40,
            threads=1,
            log_step_count_steps=0,
            save_summary_steps=0,
            num_ps=2,
            publish_interval_s=0.02,
            model_dir=str(run),
            save_checkpoints_steps=9,
            sync_targets=(server.address, "127.0.0.1:1"),
            sync_signature_name="raw_assign",
        )
        connect(tables.addresses, job, Security()).train()
        client = Client(server.address, model="default", timeout_s=60)
        for table, (ids, rows) in all_rows(run).items():
            assert len(ids)
            np.testing.assert_array_equal(client.predict({table: ids}, signature="lookup")[table], rows)
        client.close()
