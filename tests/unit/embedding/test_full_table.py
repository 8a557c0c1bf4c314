"""A full table evicts its least recently updated rows on request: flat memory, kept rows, deltas, snapshots."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolith._native import set_threads, threads
from monolith.core.errors import CapacityExceeded, ConfigError, MonolithError
from monolith.embedding import Adagrad, MultiTable, SliceSpec, Table, TableSpec
from monolith.embedding.memory_limit import FullTableLog, MemoryLimit
from monolith.testing.fakes.clock import FakeClock

BUDGET = 2_000_000


def spec(name: str = "t", **options: Any) -> TableSpec:
    settings: dict[str, Any] = {"max_bytes": BUDGET, "when_full": "evict_oldest"}
    return TableSpec(name, [SliceSpec(8, optimizer=Adagrad())], **{**settings, **options})


def push(table: Table, ids: Any, time_s: int = 0) -> None:
    table.apply_gradients(ids, np.ones((len(ids), table.dim), np.float32), time_s=time_s)


def ids_of(table: Table) -> set[int]:
    return {int(id_) for ids, _ in table.items() for id_ in ids}


def test_a_table_trained_far_beyond_its_budget_has_flat_memory_and_the_newest_rows() -> None:
    table = Table(spec())
    sizes = []
    for step in range(300):
        push(table, np.arange(step * 500, (step + 1) * 500), time_s=1000 + step)
        assert table.memory_bytes <= BUDGET
        sizes.append(table.memory_bytes)
    assert sizes[-1] == sizes[100]
    rows = len(table)
    assert table.stats.rows_evicted_full == 150_000 - rows
    assert rows > 5_000
    present = ids_of(table)
    assert set(range(150_000 - 2_000, 150_000)) <= present
    assert min(present) > 150_000 - 4 * rows
    assert table.stats.rows_evicted == 0


def test_rows_that_are_updated_in_every_step_stay() -> None:
    table, hot = Table(spec()), np.arange(100)
    for step in range(200):
        push(table, np.concatenate([hot, np.arange(1000 + step * 500, 1500 + step * 500)]), time_s=1000 + step)
    assert table.contains(hot).all()
    assert table.stats.rows_evicted_full > 0


def test_without_event_times_the_first_made_rows_leave_first() -> None:
    table = Table(spec())
    for step in range(300):
        push(table, np.arange(step * 500, (step + 1) * 500))
    newest = set(range(150_000 - 2_000, 150_000))
    assert newest <= ids_of(table)


def test_an_evicted_row_is_explained_and_its_id_starts_over() -> None:
    table = Table(spec())
    push(table, [7], time_s=1)
    initial = table.lookup([7]).tolist()
    for step in range(40):
        push(table, np.arange(1000 + step * 1000, 2000 + step * 1000), time_s=2 + step)
    assert not table.contains([7]).any()
    assert "evicted because the table was full" in table.explain(7)
    push(table, [7], time_s=100)
    assert table.lookup([7]).tolist() == initial


def test_each_eviction_removes_a_bounded_share_of_the_table() -> None:
    table = Table(spec())
    before, largest = 0, 0
    for step in range(3000):
        push(table, np.arange(step * 10, (step + 1) * 10), time_s=1000 + step)
        largest = max(largest, table.stats.rows_evicted_full - before)
        before = table.stats.rows_evicted_full
    assert before > 0
    assert largest < len(table) / 16  # ten new ids reach at most ten of the 64 parts


def test_a_call_with_more_ids_than_the_table_can_hold_is_refused_without_change() -> None:
    table = Table(spec())
    push(table, np.arange(3000), time_s=5)
    before = ids_of(table)
    with pytest.raises(CapacityExceeded, match="max_bytes 2000000"):
        push(table, np.arange(100_000), time_s=6)
    assert ids_of(table) == before
    assert table.stats.rows_evicted_full == 0


def test_evictions_are_noted_as_changes() -> None:
    table = Table(spec())
    push(table, np.arange(3000), time_s=1)
    table.drain_touched()
    for step in range(20):
        push(table, np.arange(5000 + step * 1000, 6000 + step * 1000), time_s=2 + step)
    gone = set(range(3000)) - ids_of(table)
    assert gone
    assert gone <= set(table.drain_touched().tolist())


def test_a_deterministic_table_evicts_the_same_rows_for_any_number_of_threads() -> None:
    def train(count: int) -> set[int]:
        set_threads(count)
        table = Table(spec(deterministic=True))
        for step in range(60):
            push(table, np.arange(step * 500, (step + 1) * 500), time_s=1000 + step)
        return ids_of(table)

    before = threads()
    try:
        assert train(1) == train(2)
    finally:
        set_threads(before)


def test_a_full_table_restores_its_own_snapshot_whole(tmp_path: Path) -> None:
    table = Table(spec())
    for step in range(60):
        push(table, np.arange(step * 500, (step + 1) * 500), time_s=1000 + step)
    table.save(tmp_path / "s")
    again = Table(spec())
    again.restore(tmp_path / "s")
    assert ids_of(again) == ids_of(table)
    restored_bytes = again.memory_bytes
    for step in range(60, 120):
        push(again, np.arange(step * 500, (step + 1) * 500), time_s=1000 + step)
    assert again.stats.rows_evicted_full > 0
    assert again.memory_bytes <= max(BUDGET, restored_bytes)


def test_a_snapshot_above_the_budget_is_refused(tmp_path: Path) -> None:
    large = Table(spec(max_bytes=None))
    push(large, np.arange(40_000))
    large.save(tmp_path / "s")
    small = Table(spec())
    with pytest.raises(CapacityExceeded, match="Nothing was changed"):
        small.restore(tmp_path / "s")
    assert len(small) == 0


@pytest.mark.parametrize("shard", [(0, 1), (2, 2)], ids=["above the budget", "shard that does not exist"])
def test_tables_keep_their_rows_when_a_snapshot_is_refused(tmp_path: Path, shard: tuple[int, int]) -> None:
    large = MultiTable([spec(max_bytes=None)])
    push(large["t"], np.arange(40_000))
    large.save(tmp_path / "s")
    small = MultiTable([spec()])
    push(small["t"], np.arange(5))
    with pytest.raises(MonolithError):
        small.restore(tmp_path / "s", shard=shard)
    assert ids_of(small["t"]) == set(range(5))


def test_a_spec_with_the_default_reaction_has_the_json_of_earlier_releases() -> None:
    assert "when_full" not in spec(when_full="refuse").to_json()
    assert TableSpec.from_json(spec().to_json()) == spec()
    assert spec().for_serving().when_full == "refuse"
    with pytest.raises(ConfigError, match="when_full is 'drop'"):
        spec(when_full="drop")


# --- a limit of several tables ---


def test_tables_with_a_common_limit_stay_below_it_together() -> None:
    tables = MultiTable([spec("large", max_bytes=None), spec("late", max_bytes=None)])
    every = [tables["large"], tables["late"]]
    limit = MemoryLimit(3 << 20)
    limit.apply(every)
    for step in range(200):
        push(tables["large"], np.arange(step * 200, (step + 1) * 200), time_s=step)
        limit.apply(every)
    # A table whose first rows come when the memory is used up gets rows too.
    for step in range(200):
        push(tables["late"], np.arange(step * 10, (step + 1) * 10), time_s=step)
        limit.apply(every)
    assert sum(table.memory_bytes for table in every) <= 3 << 20
    assert all(table.stats.rows_evicted_full for table in every)
    assert limit.evicts(every)


def test_a_limit_with_a_reaction_overrules_the_specs() -> None:
    table = Table(spec(when_full="refuse"))
    MemoryLimit(None, "evict_oldest").apply([table])
    for step in range(30):
        push(table, np.arange(step * 500, (step + 1) * 500), time_s=step)
    assert table.memory_bytes <= BUDGET
    with pytest.raises(ConfigError, match="limit_bytes is 0"):
        MemoryLimit(0)


def test_evictions_are_logged_first_immediately_then_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    table, clock = Table(spec()), FakeClock()
    log = FullTableLog(clock)
    with caplog.at_level(logging.WARNING):
        for step in range(60):
            push(table, np.arange(step * 500, (step + 1) * 500), time_s=step)
            log.report([table])
        assert len(caplog.messages) == 1
        assert "table full, least recently updated rows evicted table=t rows=" in caplog.messages[0]
        clock.advance_s(60.0)
        log.report([table])
    assert len(caplog.messages) == 2


def test_a_restore_keeps_the_limit_that_was_set_after_the_spec(tmp_path: Path) -> None:
    table = Table(spec(max_bytes=None))
    push(table, np.arange(1000), time_s=1)
    table.save(tmp_path / "s")
    table.limit_memory(BUDGET, "evict_oldest")
    table.restore(tmp_path / "s")
    for step in range(100):
        push(table, np.arange(step * 500, (step + 1) * 500), time_s=2 + step)
        assert table.memory_bytes <= BUDGET
    assert table.stats.rows_evicted_full > 0
