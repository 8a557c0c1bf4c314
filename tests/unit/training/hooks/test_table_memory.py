"""Runs whose tables are full evict the oldest rows on request, and a follower of the run loses them too."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import monolith as mt
from monolith.core.errors import CapacityExceeded, ConfigError
from monolith.embedding import Fp32, MultiTable
from monolith.sync import Follower
from monolith.testing.fakes.clock import FakeClock
from monolith.training.cluster.job_config import ClusterJobConfig

NOW = 1_700_000_000
ROWS = 500


class Clicker(mt.Model):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embedding_feature("user", slot=1, **options)
        self.bias = self.embedding_slice("user", "bias", 8, compressor=Fp32())

    def forward(self, batch: Any) -> mt.Output:
        return mt.Output(logits=self.bias(batch).sum(1), label=batch.label[:, 0])


def batches(first: int, count: int) -> list[mt.data.Batch]:
    return [
        mt.data.Batch.from_arrays(
            ids={"user": np.arange(step * ROWS, (step + 1) * ROWS).reshape(-1, 1)},
            label=np.ones((ROWS, 1)),
            event_time_s=np.full(ROWS, NOW + step),
        )
        for step in range(first, first + count)
    ]


def estimator(model: dict[str, Any] | None = None, **options: Any) -> mt.Estimator:
    quiet: dict[str, Any] = {"log_step_count_steps": 0, "save_summary_steps": 0, "threads": 1}
    return mt.Estimator(
        lambda: Clicker(**(model or {})), mt.RunConfig(**{**quiet, **options}), clock=FakeClock(float(NOW))
    )


def user_table(made: mt.Estimator) -> mt.Table:
    assert isinstance(made.store, MultiTable)
    return made.store["user"]


def test_a_run_far_beyond_its_limit_has_flat_memory(caplog: pytest.LogCaptureFixture) -> None:
    made = estimator(table_memory_limit_mb=2, when_tables_full="evict_oldest")
    with caplog.at_level(logging.WARNING):
        made.train(batches(0, 80))  # the first evictions leave room that the indexes of some parts take later
        table = user_table(made)
        early = table.memory_bytes
        made.train(batches(80, 80), resume_data=False)
    assert table.memory_bytes <= 2 << 20
    assert table.memory_bytes <= early * 1.1
    assert table.stats.rows_evicted_full == 160 * ROWS - len(table)
    assert table.contains(np.arange(158 * ROWS, 160 * ROWS)).all()
    assert any("table full, least recently updated rows evicted table=user" in line for line in caplog.messages)


def test_a_run_at_its_limit_ends_with_an_error_by_default() -> None:
    with pytest.raises(CapacityExceeded, match="user"):
        estimator(table_memory_limit_mb=2).train(batches(0, 100))


def test_a_feature_declares_budget_and_reaction_of_its_table() -> None:
    made = estimator({"max_bytes": 2_000_000, "when_full": "evict_oldest"})
    made.train(batches(0, 60))
    table = user_table(made)
    assert table.memory_bytes <= 2_000_000
    assert table.stats.rows_evicted_full > 0


class Replica:
    """Target of a follower: serving tables without weights."""

    has_weights = False
    shard = (0, 1)

    def __init__(self, tables: MultiTable) -> None:
        self.tables = tables

    def apply(self, move: Any = None, *, tables: MultiTable | None = None, **_: Any) -> None:
        self.tables = self.tables if tables is None else tables
        if move is not None:
            move.apply(self.tables)


def test_evicted_rows_leave_the_replica_of_a_run(tmp_path: Path) -> None:
    made = estimator(
        {"max_bytes": 2_000_000, "when_full": "evict_oldest"},
        model_dir=str(tmp_path / "run"),
        publish_dir=tmp_path / "published",
        publish_interval_s=3600.0,
    )
    replica = Replica(MultiTable(Clicker().declaration.table_specs()).to_serving())
    follower = Follower(tmp_path / "published", replica, clock=FakeClock(float(NOW)))
    made.train(batches(0, 3))
    follower.step()
    assert replica.tables["user"].contains([0, 1, 2]).all()
    made.train(batches(3, 70), resume_data=False)
    follower.step()
    table = user_table(made)
    assert table.stats.rows_evicted_full > 0
    assert len(replica.tables["user"]) == len(table)
    assert not replica.tables["user"].contains([0, 1, 2]).any()


def test_a_limit_of_this_process_is_refused_where_servers_hold_the_tables() -> None:
    with pytest.raises(ConfigError, match="table_memory_limit_mb is 5 with num_ps 2"):
        ClusterJobConfig(task="deepfm", data="x.parquet", num_ps=2, table_memory_limit_mb=5)
