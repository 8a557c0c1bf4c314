"""``fp16_exchange``: rows and gradients are rounded to float16 on their way, and no other number is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import training_child as child
from monolith.core.errors import ConfigError
from monolith.embedding import MultiTable, Sgd, SliceSpec, TableSpec
from monolith.embedding.specs import JOB_TABLES
from monolith.ps import RemoteStore, Security
from monolith.testing.processes.ps_servers import PsServers
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.cluster.worker_job import connect
from monolith.training.groups.ranks import RankConnection, RankInfo, RankStore

ROWS = TableSpec("rows", [SliceSpec(2, optimizer=Sgd(1.0))])
STATE = TableSpec(f"{JOB_TABLES}state", [SliceSpec(2, optimizer=Sgd(1.0))])
IDS = np.array([7, 8, 9], np.int64)
GRADS = np.array([[1 / 3, 2.0], [1e-5, -1 / 7], [1e6, 3.0]], np.float32)
ROUNDED = np.clip(GRADS, -65504, 65504).astype(np.float16).astype(np.float32)


def push_and_pull(store: Any, name: str) -> Any:
    store.push({name: IDS}, {name: GRADS})
    return store.pull({name: IDS})[name]


@pytest.mark.parametrize("transport", ["grpc", "data_plane"])
def test_servers_get_and_give_float16_and_the_state_of_a_job_stays_exact(transport: Any) -> None:
    with (
        PsServers(2) as servers,
        RemoteStore(servers.addresses, [ROWS, STATE], transport=transport, half=True) as store,
    ):
        np.testing.assert_array_equal(push_and_pull(store, ROWS.name), -ROUNDED)
        np.testing.assert_array_equal(push_and_pull(store, STATE.name), -GRADS)


def test_ranks_exchange_float16() -> None:
    with RankConnection(RankInfo()) as connection:
        np.testing.assert_array_equal(push_and_pull(RankStore(connection, [ROWS], half=True), "rows"), -ROUNDED)
        np.testing.assert_array_equal(push_and_pull(RankStore(connection, [ROWS]), "rows"), -GRADS)


def trained_rows(folder: Path, **values: Any) -> dict[str, np.ndarray[Any, Any]]:
    data = folder / "data"
    data.mkdir(parents=True)
    config = ClusterJobConfig(
        task=f"{child.__file__}:Ranker", data=child.write_data(data), batch_size=40, threads=1, log_step_count_steps=0,
        save_summary_steps=0, num_ps=2, max_steps=4, seed=3, model_dir=str(folder / "run"), **values,
    )  # fmt: skip
    with PsServers(2) as servers:
        connect(servers.addresses, config, Security()).train()
    (checkpoint,) = (folder / "run/checkpoints").glob("step-*")
    tables = MultiTable.load(checkpoint / "tables")
    ids = {name: np.sort(np.concatenate([ids for ids, _ in tables[name].items()])) for name in tables}
    return {name: rows for name, rows in tables.pull(ids).items()}


def test_the_setting_of_a_job_rounds_its_rows_by_three_digits(tmp_path: Path) -> None:
    exact, rounded = trained_rows(tmp_path / "exact"), trained_rows(tmp_path / "half", fp16_exchange=True)
    for name, rows in exact.items():
        assert not np.array_equal(rows, rounded[name])
        np.testing.assert_allclose(rounded[name], rows, rtol=0.05, atol=2e-3)


def test_a_job_that_exchanges_no_rows_refuses_the_setting() -> None:
    with pytest.raises(ConfigError, match="fp16_exchange is True and num_ps is 0"):
        ClusterJobConfig(fp16_exchange=True)
    assert ClusterJobConfig(fp16_exchange=True, enable_sync_training=True).cluster.sync.fp16_exchange
