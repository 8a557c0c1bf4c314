"""Clocks that run ahead: one push moves a clock by a day, and nothing drops most rows of a table unless forced."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from monolith.core.errors import ConfigError, ExpiryRefused
from monolith.embedding import MultiTable, Sgd, SliceSpec, Table, TableSpec
from monolith.embedding.specs import MAX_COLUMNS

NOW = 1_700_000_000
DAY = 86_400
IDS = np.arange(10_000)


def spec(name: str = "t") -> TableSpec:
    return TableSpec(name, [SliceSpec(2, optimizer=Sgd(learning_rate=1.0))], expire_days=30)


def filled() -> Table:
    table = Table(spec())
    table.apply_gradients(IDS, np.ones((len(IDS), 2), np.float32), time_s=NOW)
    return table


def test_one_event_that_is_40_days_ahead_keeps_every_row_of_the_next_save(tmp_path: Path) -> None:
    table = filled()
    table.apply_gradients([1], [[1, 1]], time_s=NOW + 40 * DAY)
    assert table.max_time_s == NOW + DAY
    table.save(tmp_path / "saved")
    restored = Table.load(tmp_path / "saved")
    assert (len(restored), restored.max_time_s) == (len(IDS), NOW + DAY)
    assert restored.evict() == 0
    served = restored.to_serving()
    assert (len(served), served.max_time_s) == (len(IDS), NOW + DAY)


def test_a_save_that_drops_most_rows_is_refused_unless_forced(tmp_path: Path) -> None:
    table = filled()
    table.assign([1], [[1, 1]], time_s=NOW + 40 * DAY)
    with pytest.raises(ExpiryRefused, match=r"'t'.*drops 9999 of 10000 rows"):
        table.save(tmp_path / "saved")
    assert not list(tmp_path.glob("saved/*"))
    table.copy_admission_of(Table(spec()))
    with pytest.raises(ExpiryRefused):
        table.evict()
    with pytest.raises(ExpiryRefused):
        table.to_serving()
    assert len(table) == len(IDS)
    table.force_expiry = True
    table.save(tmp_path / "saved")
    assert len(Table.load(tmp_path / "saved")) == 1


def test_an_eviction_that_is_forced_drops_all() -> None:
    table = filled()
    assert table.evict(NOW + 40 * DAY, force=True) == len(IDS)


def test_several_tables_are_evicted_all_or_none() -> None:
    tables = MultiTable([spec("a"), spec("b")])
    tables["a"].assign(IDS[:2000], np.ones((2000, 2), np.float32), time_s=NOW - 20 * DAY)
    tables["a"].assign(IDS, np.ones((len(IDS), 2), np.float32), time_s=NOW)
    tables["b"].assign(IDS, np.ones((len(IDS), 2), np.float32), time_s=NOW - 40 * DAY)
    with pytest.raises(ExpiryRefused, match="'b'"):
        tables.evict(NOW)
    assert (len(tables["a"]), len(tables["b"])) == (len(IDS), len(IDS))
    assert MultiTable([spec("a")], force_expiry=True)["a"].force_expiry
    assert tables.evict(NOW, force=True) == len(IDS)


@pytest.mark.parametrize("dims", [(2**31, 2**31 + 4), (MAX_COLUMNS, 1), (MAX_COLUMNS + 1,)])
def test_widths_beyond_the_engine_are_refused_by_the_spec(dims: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="columns"):
        TableSpec("t", [SliceSpec(dim, optimizer=Sgd()) for dim in dims])
