"""Expired rows leave tables by a schedule of event hours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from monolith.core.errors import ConfigError
from monolith.embedding import MultiTable, Sgd, SliceSpec, Table, TableSpec
from monolith.embedding.expiry import ExpirySchedule, has_expiry

NOW = 1_700_000_000
HOUR = 3600
DAY = 24 * HOUR


def make_table(expire_days: int = 2, **options: Any) -> Table:
    return Table(TableSpec("t", [SliceSpec(8, optimizer=Sgd(learning_rate=1.0))], expire_days=expire_days, **options))


def learn(table: Table, ids: Any, time_s: int) -> None:
    table.apply_gradients(ids, np.ones((len(ids), table.dim), np.float32), time_s=time_s)


def test_memory_is_flat_over_many_expiry_periods() -> None:
    table, schedule = make_table(), ExpirySchedule(12)
    bytes_at, rows = [], 2000
    for half_day in range(120):
        learn(table, np.arange(half_day * rows, (half_day + 1) * rows), NOW + half_day * DAY // 2)
        schedule.evict([table])
        bytes_at.append(table.memory_bytes)
    assert table.stats.rows_evicted >= 114 * rows
    assert len(table) <= 5 * rows
    assert max(bytes_at[40:]) <= max(bytes_at[:40])  # the notes of removals are bounded too


def test_a_schedule_waits_for_a_period_of_the_event_clock() -> None:
    table, schedule = make_table(expire_days=1), ExpirySchedule(24)
    learn(table, [1], NOW)
    assert schedule.evict([table]) == 0
    learn(table, [2], NOW + 23 * HOUR)
    assert schedule.due([table]) == []
    learn(table, [3], NOW + 24 * HOUR)
    assert schedule.due([table]) == [table]
    assert schedule.evict([table]) == 1
    assert table.contains([1, 2, 3]).tolist() == [False, True, True]
    assert schedule.due([table]) == []


def test_a_clock_that_a_restore_set_back_is_due_again() -> None:
    table, schedule = make_table(), ExpirySchedule(24)
    learn(table, [1], NOW)
    schedule.evict([table])
    table.clear()
    assert schedule.due([table]) == []
    learn(table, [1], NOW - 5 * DAY)
    assert schedule.due([table]) == [table]


def test_a_table_without_an_expiry_is_never_due() -> None:
    table = make_table(expire_days=36500)
    learn(table, [1], NOW)
    assert not has_expiry(table.spec)
    assert ExpirySchedule(1).due([table]) == []
    assert has_expiry(TableSpec("t", table.spec.slices, slot_expire_days={3: 7}))


def test_a_refused_eviction_is_counted_and_keeps_the_rows(caplog: pytest.LogCaptureFixture) -> None:
    table, schedule = make_table(expire_days=1), ExpirySchedule(1)
    learn(table, np.arange(5000), NOW)
    schedule.evict([table])
    table.assign([1], np.ones((1, table.dim), np.float32), time_s=NOW + 3 * DAY)
    assert schedule.evict([table]) == 0
    assert (schedule.refusals, len(table)) == (1, 5000)
    assert "eviction refused table=t" in caplog.text
    tables = MultiTable([table.spec], force_expiry=True)
    learn(tables["t"], np.arange(5000), NOW)
    tables["t"].assign([1], np.ones((1, table.dim), np.float32), time_s=NOW + 3 * DAY)
    assert ExpirySchedule(1).evict([tables["t"]]) == 4999


@pytest.mark.parametrize("hours", [0, -1, float("nan")])
def test_a_period_that_is_not_positive_is_refused(hours: float) -> None:
    with pytest.raises(ConfigError, match="every_hours is"):
        ExpirySchedule(hours)
