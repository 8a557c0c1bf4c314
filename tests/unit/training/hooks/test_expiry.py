"""Runs remove expired rows by themselves, and a follower of the run loses them too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import monolith as mt
from monolith.embedding import Fp32, MultiTable
from monolith.sync import Follower
from monolith.testing.fakes.clock import FakeClock

NOW = 1_700_000_000
DAY = 86_400


class Clicker(mt.Model):
    def __init__(self, expire_days: int = 3) -> None:
        super().__init__()
        self.embedding_feature("user", slot=1, expire_days=expire_days)
        self.embedding_feature("item", slot=2)
        self.bias = self.embedding_slice(["user", "item"], "bias", 1, out="add_n", compressor=Fp32())

    def forward(self, batch: Any) -> mt.Output:
        return mt.Output(logits=self.bias(batch).squeeze(1), label=batch.label[:, 0])


def batch_of(day: int, rows: int = 40) -> mt.data.Batch:
    ids = np.arange(day * rows, (day + 1) * rows).reshape(-1, 1)
    return mt.data.Batch.from_arrays(
        ids={"user": ids, "item": ids}, label=np.ones((rows, 1)), event_time_s=np.full(rows, NOW + day * DAY)
    )


def estimator(**options: Any) -> mt.Estimator:
    quiet: dict[str, Any] = {"log_step_count_steps": 0, "save_summary_steps": 0, "threads": 1}
    return mt.Estimator(Clicker, mt.RunConfig(**{**quiet, **options}), clock=FakeClock(float(NOW + 60 * DAY)))


def tables_of(made: mt.Estimator) -> MultiTable:
    assert isinstance(made.store, MultiTable)
    return made.store


def test_a_run_keeps_only_the_rows_of_the_last_days() -> None:
    made = estimator()
    made.train([batch_of(day) for day in range(30)])
    user, item = tables_of(made)["user"], tables_of(made)["item"]
    assert len(user) == 3 * 40
    assert user.contains([26 * 40, 27 * 40, 29 * 40]).tolist() == [False, True, True]
    assert len(item) == 30 * 40  # without an expiry


def test_the_memory_of_a_run_is_flat_over_many_expiry_periods() -> None:
    made = estimator()
    sizes = []
    for first in range(0, 50, 10):  # 17 periods of 3 days
        made.train([batch_of(day, rows=2000) for day in range(first, first + 10)], resume_data=False)
        sizes.append(tables_of(made)["user"].memory_bytes)
    assert sizes[0] > 3 * 2000 * 8, "the rows of three days need memory"
    assert max(sizes[1:]) <= 1.02 * sizes[1], sizes  # an index grows until day 20


def test_a_run_without_a_schedule_keeps_all_rows() -> None:
    made = estimator(feature_evict_every_n_hours=None)
    made.train([batch_of(day) for day in range(10)])
    assert len(tables_of(made)["user"]) == 400


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


def test_expired_rows_leave_the_replica_of_a_run(tmp_path: Path) -> None:
    made = estimator(model_dir=str(tmp_path / "run"), publish_dir=tmp_path / "published", publish_interval_s=3600.0)
    replica = Replica(MultiTable(Clicker().declaration.table_specs()).to_serving())
    follower = Follower(tmp_path / "published", replica, clock=FakeClock(float(NOW)))
    made.train([batch_of(day) for day in range(3)])
    follower.step()
    assert replica.tables["user"].contains([0, 40, 80]).all()
    made.train([batch_of(day) for day in range(3, 12)], resume_data=False)
    follower.step()
    assert not replica.tables["user"].contains([0, 40, 80]).any()
    assert len(replica.tables["user"]) == len(tables_of(made)["user"]) == 3 * 40
    assert len(replica.tables["item"]) == 12 * 40
