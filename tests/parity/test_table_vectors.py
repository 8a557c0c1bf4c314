"""Tables against the golden vectors of spec/embedding_and_layers.md, 7.2: the rows that need files or many tables.

Rows 1-11, 14, 15, 19 and 26 are in tests/conformance/test_table.py, where the fake passes them too.
Upstream: monolith/native_training/{hash_table_ops,multi_hash_table_ops,distributed_ps}_test.py and
runtime/hash_table/*_test.cc of bytedance/monolith 135c491.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolith.core.errors import MonolithError
from monolith.embedding import MultiTable, Table
from monolith.embedding.initializers import Ones
from monolith.embedding.optimizers import Sgd
from monolith.embedding.specs import SliceSpec, TableSpec

DAY_S = 86400


def spec(name: str = "t", dim: int = 1, rate: float = 0.1, **settings: Any) -> TableSpec:
    return TableSpec(name, [SliceSpec(dim, optimizer=Sgd(rate))], **settings)


def ones(count: int, dim: int = 1) -> np.ndarray:
    return np.ones((count, dim), np.float32)


def column(table: Any, ids: list[int]) -> list[float]:
    return [round(float(value), 6) for value in table.lookup(np.array(ids))[:, 0]]


# --- saving and expiry ------------------------------------------------------------------------------------------------


def test_row_12_expired_rows_are_not_saved(tmp_path: Path) -> None:
    newest = 10 * DAY_S
    table = Table(spec(expire_days=1))
    for fid, time_s in enumerate((newest - DAY_S - 1, newest - DAY_S + 1, newest)):
        table.assign(np.array([fid]), ones(1), time_s=time_s)
    table.save(tmp_path / "t")
    assert column(Table.load(tmp_path / "t"), [0, 1, 2]) == [0, 1, 1]
    assert len(table) == 3


def test_row_13_an_expiry_of_zero_saves_nothing(tmp_path: Path) -> None:
    table = Table(spec(expire_days=0))
    table.assign(np.array([1, 2]), ones(2), time_s=100)
    table.save(tmp_path / "t")
    assert len(Table.load(tmp_path / "t")) == 0


def test_row_13_an_expiry_of_zero_for_one_slot_drops_only_that_slot(tmp_path: Path) -> None:
    table = Table(spec(slot_expire_days={1: 0, 2: 1}))
    ids = [(1 << 48) | 5, (2 << 48) | 5]
    table.assign(np.array(ids), np.array([[1], [2]], np.float32), time_s=100)
    table.save(tmp_path / "t")
    assert column(Table.load(tmp_path / "t"), ids) == [0, 2]


def test_row_16_a_name_that_begins_like_another_does_not_disturb_it(tmp_path: Path) -> None:
    for name, value in (("table1", 1), ("table10", 10)):
        table = Table(spec(name))
        table.assign(np.array([7]), value * ones(1))
        table.save(tmp_path / name)
    for name, value in (("table1", 1), ("table10", 10)):
        assert column(Table.load(tmp_path / name), [7]) == [value]
    both = MultiTable([spec("table1"), spec("table10")])
    both["table1"].assign(np.array([7]), ones(1))
    both["table10"].assign(np.array([7, 8]), 10 * ones(2))
    both.save(tmp_path / "both")
    again = MultiTable([spec("table1"), spec("table10")])
    again.restore(tmp_path / "both")
    assert column(again["table1"], [7, 8]) == [1, 0]
    assert column(again["table10"], [7, 8]) == [10, 10]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    table = Table(spec())
    table.assign(np.arange(1000), ones(1000))
    table.save(tmp_path / "t", shards=4)
    return tmp_path / "t"


def test_row_17_left_over_temporary_files_are_ignored(saved: Path) -> None:
    part = next(saved.glob("*-of-00004.rows"))
    (saved / f"{part.name}.tmp-123").write_bytes(b"torn")
    assert len(Table.load(saved)) == 1000


def test_row_17_a_missing_part_is_refused(saved: Path) -> None:
    part = next(saved.glob("*-00002-of-00004.rows"))
    part.unlink()
    with pytest.raises(MonolithError, match=part.name):
        Table.load(saved)


def test_row_17_a_part_in_the_place_of_another_is_refused(saved: Path) -> None:
    first, second = (next(saved.glob(f"*-0000{i}-of-00004.rows")) for i in (0, 1))
    first.write_bytes(second.read_bytes())
    with pytest.raises(MonolithError, match=first.name):
        Table.load(saved)


def test_row_17_a_path_without_a_snapshot_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MonolithError, match="nowhere"):
        Table.load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(MonolithError, match="empty"):
        Table.load(tmp_path / "empty")


def test_row_18_paging_through_a_table_yields_each_row_once() -> None:
    table = Table(spec())
    table.assign(np.arange(100), ones(100))
    pages = [ids.tolist() for ids, _ in table.items(batch_size=2)]
    assert all(len(page) <= 2 for page in pages)
    assert sorted(fid for page in pages for fid in page) == list(range(100))


# --- serving ----------------------------------------------------------------------------------------------------------


def test_row_20_a_serving_table_keeps_no_zero_rows() -> None:
    serving = Table(spec()).to_serving(skip_zero_rows=True)

    def assign(worker: int) -> None:
        for fid in range(worker, 3000, 10):
            serving.assign(np.array([fid]), np.array([[fid % 2]], np.float32))

    threads = [threading.Thread(target=assign, args=(worker,)) for worker in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert serving.contains(np.arange(3000)).tolist() == [fid % 2 == 1 for fid in range(3000)]


def test_row_20_zero_rows_are_left_out_when_a_trained_table_goes_to_serving() -> None:
    table = Table(spec())
    ids = np.arange(3000)
    table.assign(ids, (ids % 2).reshape(-1, 1).astype(np.float32))
    serving = table.to_serving(skip_zero_rows=True)
    assert serving.contains(ids).tolist() == (ids % 2 == 1).tolist()


# --- many tables ------------------------------------------------------------------------------------------------------


def test_row_21_restoring_takes_the_tables_it_knows_and_reports_the_rest(tmp_path: Path) -> None:
    saved = MultiTable([spec("slot0", 1), spec("slot1", 2), spec("slot2", 2)])
    for name in saved.names:
        saved[name].assign(np.array([1]), 5 * ones(1, saved[name].dim))
    saved.save(tmp_path / "m")
    other = MultiTable([spec("slot3", 3), spec("slot2", 2), spec("slot0", 1)])
    report = other.restore(tmp_path / "m")
    assert sorted(report.restored) == ["slot0", "slot2"]
    assert sorted(report.skipped) == ["slot1"]
    assert sorted(report.missing) == ["slot3"]
    assert [column(other[name], [1])[0] for name in other.names] == [5, 5, 0]


def test_row_10_reinitialize_of_an_unknown_table_answers_minus_one() -> None:
    tables = MultiTable([TableSpec(f"slot{i}", [SliceSpec(1, optimizer=Sgd(), initializer=Ones())]) for i in range(3)])
    tables["slot2"].assign(np.array([2, 3]), 9 * ones(2))
    assert tables.reinitialize("slot2", np.array([1, 2, 3])).tolist() == [0, 1, 1]
    assert column(tables["slot2"], [1, 2, 3]) == [1, 1, 1]
    assert tables.reinitialize("slot9", np.array([1, 2, 3])).tolist() == [-1, -1, -1]


def test_row_22_fused_lookup() -> None:
    tables = MultiTable([spec("a", 1), spec("b", 1), spec("c", 2)])
    # Table x holds the ids 3x and 3x + 1: 1 in tables a and c, 0 in table b.
    for x, (name, value) in enumerate((("a", 1), ("b", 0), ("c", 1))):
        tables[name].assign(np.array([3 * x, 3 * x + 1]), value * ones(2, tables[name].dim))
    fused = tables.fused_lookup(np.array([0, 4, 6, 1, 3, 7]), np.ones(6, np.int32), num_shards=2)
    assert fused.embeddings.tolist() == [1, 0, 1, 1, 1, 0, 1, 1]
    assert fused.embedding_splits.tolist() == [4, 4]
    assert fused.id_offsets.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert fused.embedding_offsets.tolist() == [0, 1, 2, 4, 5, 6, 8]


def test_row_23_fused_gradients() -> None:
    tables = MultiTable([spec("a", 1), spec("b", 2)])
    tables["a"].assign(np.array([0, 1]), ones(2))
    ids, sizes = np.array([0, 4, 1, 3]), np.ones(4, np.int32)
    tables.fused_apply_gradients(ids, sizes, np.array([-1, -2, -2, -1, -2, -2], np.float32), num_shards=2)
    fused = tables.fused_lookup(ids, sizes, num_shards=2)
    assert fused.embeddings.tolist() == pytest.approx([1.1, 0.2, 0.2, 1.1, 0.2, 0.2])
    assert fused.embedding_splits.tolist() == [3, 3]
    assert fused.embedding_offsets.tolist() == [0, 1, 3, 4, 6]


def test_row_24_an_id_from_two_workers_takes_two_steps() -> None:
    tables = MultiTable([spec("a", 1, rate=1.0), spec("b", 1, rate=1.0)])
    ids, sizes = np.array([1, 1]), np.array([1, 0, 1, 0], np.int32)
    tables.fused_apply_gradients(ids, sizes, np.array([1, 2], np.float32), num_shards=2)
    fused = tables.fused_lookup(ids, sizes, num_shards=2)
    assert fused.embeddings.tolist() == [-3, -3]


def test_row_25_tables_with_equal_configuration_share_their_rows_when_merged() -> None:
    tables = MultiTable.merged([spec("slot1", 2), spec("slot2", 2)])
    assert tables.table_of("slot1") == tables.table_of("slot2")
    one = tables[tables.table_of("slot1")]
    one.assign_add(np.array([1]), np.full((1, 2), 2, np.float32))
    tables[tables.table_of("slot2")].assign_add(np.array([1]), np.full((1, 2), 4, np.float32))
    assert one.lookup(np.array([1])).tolist() == [[6, 6]]


def test_merged_tables_are_restored_from_a_snapshot_of_the_time_before_slots_were_renamed(tmp_path: Path) -> None:
    old = MultiTable.merged([spec("slot_0"), spec("slot_1")])
    old[old.table_of("slot_0")].assign(np.array([1]), 5 * ones(1))
    old.save(tmp_path / "m")
    new = MultiTable.merged([spec("fc_slot_0"), spec("fc_slot_1")])
    assert new.names != old.names
    assert new.restore(tmp_path / "m").restored == new.names
    assert column(new[new.table_of("fc_slot_1")], [1]) == [5]


def test_learning_rates_and_tables_are_both_in_the_order_of_names() -> None:
    # The original takes rates in the order of declaration and tables in the order of names.
    tables = MultiTable([spec("b", 1, rate=2.0), spec("a", 1, rate=1.0)])
    assert list(tables.names) == ["a", "b"]
    ids, grads = np.array([7, 7]), np.array([1, 1], np.float32)
    tables.fused_apply_gradients(ids, np.array([1, 1], np.int32), grads, num_shards=1)
    assert [column(tables[name], [7]) for name in ("a", "b")] == [[-1], [-2]]


def test_many_tables_are_read_and_updated_in_one_call() -> None:
    tables = MultiTable([spec("a", 1, rate=1.0), spec("b", 3, rate=1.0)])
    ids = {"b": np.array([5, 5]), "a": np.array([1])}
    tables.apply_gradients(ids, {"b": ones(2, 3), "a": ones(1)}, time_s=9)
    rows = tables.lookup({"a": np.array([1, 2]), "b": np.array([5])})
    assert list(rows) == ["a", "b"]
    assert rows["a"].tolist() == [[-1], [0]]
    assert rows["b"].tolist() == [[-2, -2, -2]]
    tables.apply_gradients(ids, {"b": ones(2, 3), "a": ones(1)}, learning_rates={"a": [10.0]})
    assert column(tables["a"], [1]) == [-11]
    assert column(tables["b"], [5]) == [-4]
    assert tables["b"].max_time_s == 9


def test_many_tables_are_pooled_in_one_call() -> None:
    tables = MultiTable([spec("a", 1, rate=1.0), spec("b", 2, rate=1.0)])
    bags = {"a": (np.array([1, 2, 1]), np.array([0, 2, 3])), "b": (np.array([4]), np.array([0, 0, 1]))}
    grads = {"a": np.array([[1], [10]], np.float32), "b": np.array([[9, 9], [2, 3]], np.float32)}
    tables.apply_pooled_gradients(bags, grads)
    pooled = tables.lookup_pooled(bags, "sum")
    assert pooled["a"].tolist() == [[-12], [-11]]
    assert pooled["b"].tolist() == [[0, 0], [-2, -3]]


# --- touched ids ------------------------------------------------------------------------------------------------------


def test_row_27_touched_ids_beyond_the_capacity_drop_all_and_are_counted() -> None:
    table = Table(spec(touched_capacity=1000))
    table.drain_touched()
    for fid in range(1000):
        table.assign(np.array([fid]), ones(1))
    assert table.stats.touched_dropped == 0
    for fid in range(1000, 1005):
        table.assign(np.array([fid]), ones(1))
    assert table.stats.touched_dropped == 1001
    assert table.drain_touched().tolist() == [1001, 1002, 1003, 1004]
