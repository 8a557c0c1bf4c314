"""Arguments that cannot be right are refused with the table, the value and the remedy, and change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from monolith.core.errors import CapacityExceeded, ConfigError, DimensionMismatch, MonolithError
from monolith.embedding import MultiTable, Table
from monolith.embedding.optimizers import Adagrad, Sgd
from monolith.embedding.specs import SliceSpec, TableSpec

ID = np.array([1])
ROW = np.ones((1, 3), np.float32)


@pytest.fixture
def table() -> Table:
    made = Table(TableSpec("user", [SliceSpec(1, optimizer=Sgd()), SliceSpec(2, optimizer=Adagrad())]))
    made.assign(np.array([7]), ROW, time_s=50)
    return made


@pytest.fixture(autouse=True)
def _the_table_is_unchanged(table: Table) -> Any:
    yield
    assert len(table) == 1
    assert table.lookup(np.array([7])).tolist() == [[1, 1, 1]]
    assert table.max_time_s == 50


# --- ids --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [np.array([1.0]), np.array([True]), np.array(["1"]), np.array([1], object)], ids=str)
@pytest.mark.parametrize(
    "call",
    [
        lambda table, ids: table.lookup(ids),
        lambda table, ids: table.contains(ids),
        lambda table, ids: table.assign(ids, ROW),
        lambda table, ids: table.assign_add(ids, ROW),
        lambda table, ids: table.apply_gradients(ids, ROW),
        lambda table, ids: table.lookup_pooled(ids, np.array([0, 1])),
        lambda table, ids: table.apply_pooled_gradients(ids, np.array([0, 1]), ROW),
        lambda table, ids: table.reinitialize(ids),
        lambda table, ids: table.delete(ids),
    ],
    ids=["lookup", "contains", "assign", "assign_add", "gradients", "pooled", "pooled gradients", "reinit", "delete"],
)
def test_ids_must_be_whole_numbers(table: Table, ids: np.ndarray, call: Any) -> None:
    with pytest.raises(MonolithError, match=str(ids.dtype)):
        call(table, ids)


@pytest.mark.parametrize("ids", [np.array([[1]]), np.array(1)], ids=["two axes", "no axis"])
def test_ids_must_be_a_flat_list(table: Table, ids: np.ndarray) -> None:
    with pytest.raises(MonolithError, match="shape"):
        table.lookup(ids)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32, ">i8"])
def test_narrower_integers_are_widened(table: Table, dtype: Any) -> None:
    assert table.lookup(np.array([7], dtype)).tolist() == [[1, 1, 1]]


def test_unsigned_ids_are_the_same_bits() -> None:
    one = Table(TableSpec("t", [SliceSpec(1, optimizer=Sgd())]))
    one.assign(np.array([-1]), np.ones((1, 1), np.float32))
    assert one.contains(np.array([2**64 - 1], np.uint64)).tolist() == [True]


def test_strided_ids_and_rows_are_taken_as_they_read(table: Table) -> None:
    ids = np.array([7, 0, 8, 0])[::2]
    assert table.contains(ids).tolist() == [True, False]
    one = Table(TableSpec("t", [SliceSpec(2, optimizer=Sgd())]))
    one.assign(ids, np.arange(4, dtype=np.float32).reshape(2, 2).T)
    assert one.lookup(ids).tolist() == [[0, 2], [1, 3]]


def test_lists_and_other_floats_are_converted() -> None:
    one = Table(TableSpec("t", [SliceSpec(2, optimizer=Sgd())]))
    one.assign([1, 2], [[1, 2], [3, 4]])
    one.assign_add(np.array([1]), np.array([[0.5, 0.5]], np.float64))
    assert one.lookup([1, 2]).tolist() == [[1.5, 2.5], [3, 4]]
    assert one.lookup([]).shape == (0, 2)


# --- rows and gradients -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.assign(ID, np.ones((1, 4), np.float32)),
        lambda table: table.assign_add(ID, np.ones((1, 4), np.float32)),
        lambda table: table.apply_gradients(ID, np.ones((1, 4), np.float32)),
        lambda table: table.apply_pooled_gradients(ID, np.array([0, 1]), np.ones((1, 4), np.float32)),
        lambda table: table.apply_pooled_gradients(ID, np.array([0, 1]), np.ones((1, 2, 4), np.float32), ("first", 2)),
        lambda table: table.apply_gradients(ID, ROW, values_at_gradient=np.ones((1, 4), np.float32)),
    ],
    ids=["assign", "assign_add", "gradients", "pooled", "first", "values at gradient"],
)
def test_a_wrong_width_is_refused_with_both_widths(table: Table, call: Any) -> None:
    with pytest.raises(DimensionMismatch, match=r"(?s)'user'.*\b3\b.*\b4\b"):
        call(table)


@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.assign(ID, np.ones((2, 3), np.float32)),
        lambda table: table.apply_gradients(ID, np.ones((2, 3), np.float32)),
        lambda table: table.apply_gradients(ID, np.ones((0, 3), np.float32)),
        lambda table: table.apply_gradients(ID, ROW, values_at_gradient=np.ones((2, 3), np.float32)),
        lambda table: table.apply_pooled_gradients(ID, np.array([0, 1]), np.ones((2, 3), np.float32)),
        lambda table: table.apply_pooled_gradients(ID, np.array([0, 1]), np.ones((1, 3, 3), np.float32), ("first", 2)),
    ],
    ids=["assign", "too many", "too few", "values at gradient", "pooled", "first"],
)
def test_a_wrong_number_of_rows_is_refused(table: Table, call: Any) -> None:
    with pytest.raises(DimensionMismatch, match="'user'"):
        call(table)


@pytest.mark.parametrize("rows", [np.ones(3, np.float32), np.ones((1, 1, 3), np.float32)], ids=["flat", "three axes"])
def test_rows_must_have_two_axes(table: Table, rows: np.ndarray) -> None:
    with pytest.raises(MonolithError, match="'user'"):
        table.apply_gradients(ID, rows)


@pytest.mark.parametrize("rows", [np.array([["a"] * 3]), np.ones((1, 3), np.complex64)], ids=["text", "complex"])
def test_rows_must_be_real_numbers(table: Table, rows: np.ndarray) -> None:
    with pytest.raises(MonolithError, match="user"):
        table.apply_gradients(ID, rows)


# --- scalars ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rates", [[], [0.1], [0.1, 0.1, 0.1], [[0.1, 0.1]]], ids=["none", "one", "three", "nested"])
def test_there_must_be_one_learning_rate_per_slice(table: Table, rates: Any) -> None:
    with pytest.raises(MonolithError, match=r"(?s)'user'.*2 slices"):
        table.apply_gradients(ID, ROW, learning_rates=rates)


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -0.1])
def test_a_learning_rate_must_be_finite_and_not_negative(table: Table, rate: float) -> None:
    with pytest.raises(MonolithError, match="learning"):
        table.apply_gradients(ID, ROW, learning_rates=[0.1, rate])


@pytest.mark.parametrize("time_s", [-1, 2**32])
@pytest.mark.parametrize(
    "call",
    [
        lambda table, time_s: table.assign(ID, ROW, time_s=time_s),
        lambda table, time_s: table.assign_add(ID, ROW, time_s=time_s),
        lambda table, time_s: table.apply_gradients(ID, ROW, time_s=time_s),
        lambda table, time_s: table.apply_pooled_gradients(ID, np.array([0, 1]), ROW, time_s=time_s),
    ],
    ids=["assign", "assign_add", "gradients", "pooled"],
)
def test_times_are_unix_seconds_of_32_bits(table: Table, time_s: int, call: Any) -> None:
    with pytest.raises(MonolithError, match=f"time_s.*{time_s}"):
        call(table, time_s)


def test_a_step_must_not_be_negative(table: Table) -> None:
    with pytest.raises(MonolithError, match=r"step.*-1"):
        table.apply_gradients(ID, ROW, step=-1)


# --- bags -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "offsets",
    [[], [1, 2], [0, 1], [0, 3], [0, 2, 1, 2], [0, -1, 2], [0, 2**63 - 1, -2, 2], [0.0, 2.0], [[0, 2]]],
    ids=["empty", "not from 0", "too short", "too long", "falling", "negative", "around", "floats", "nested"],
)
def test_offsets_must_rise_from_zero_to_the_number_of_ids(table: Table, offsets: Any) -> None:
    ids = np.array([1, 2])
    with pytest.raises(MonolithError, match="offsets"):
        table.lookup_pooled(ids, np.array(offsets))
    with pytest.raises(MonolithError, match="offsets"):
        table.apply_pooled_gradients(ids, np.array(offsets), np.repeat(ROW, max(1, len(offsets) - 1), axis=0))


@pytest.mark.parametrize("mode", ["max", ("first", 0), ("first", -1), ("last", 2), ("first", 1.5), None], ids=str)
def test_modes_are_sum_mean_and_first_n(table: Table, mode: Any) -> None:
    with pytest.raises(MonolithError, match="mode"):
        table.lookup_pooled(ID, np.array([0, 1]), mode=mode)
    with pytest.raises(MonolithError, match="mode"):
        table.apply_pooled_gradients(ID, np.array([0, 1]), ROW, mode=mode)


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_a_negative_clock_is_refused(table: Table) -> None:
    with pytest.raises(MonolithError, match="now_s"):
        table.evict(now_s=-1)


@pytest.mark.parametrize("batch_size", [0, -1])
def test_batches_must_have_rows(table: Table, batch_size: int) -> None:
    with pytest.raises(MonolithError, match="batch_size"):
        next(iter(table.items(batch_size=batch_size)))


@pytest.mark.parametrize("shards", [0, -1])
def test_a_snapshot_needs_at_least_one_part(table: Table, shards: int, tmp_path: Any) -> None:
    with pytest.raises(MonolithError, match="shards"):
        table.save(tmp_path / "t", shards=shards)


def fill(table: Table, rows: np.ndarray) -> None:
    for start in range(0, 1_000_000, len(rows)):
        table.assign(np.arange(start, start + len(rows)), rows)


@pytest.mark.parametrize("shard", [(0, 0), (2, 2), (-1, 2), (0, -1)])
def test_a_serving_copy_of_a_shard_that_does_not_exist_is_refused(table: Table, shard: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match=r"shard is .*expected \(index, count\)"):
        table.to_serving(shard=shard)
    with pytest.raises(ConfigError, match="shard"):
        MultiTable.of({"t": table}).to_serving(shard=shard)


@pytest.mark.parametrize(("max_bytes", "when_full"), [(0, "refuse"), (-1, "refuse"), (1 << 64, "refuse"), (9, "evict")])
def test_an_invalid_limit_is_refused_and_the_limit_before_stays(table: Table, max_bytes: int, when_full: Any) -> None:
    table.limit_memory(1 << 20, "evict_oldest")
    with pytest.raises(ConfigError, match=r"(max_bytes|when_full) is"):
        table.limit_memory(max_bytes, when_full)
    assert table.budget == 1 << 20
    assert table._native.evicts_when_full


def test_a_full_table_refuses_loudly_and_keeps_its_rows() -> None:
    one = Table(TableSpec("small", [SliceSpec(64, optimizer=Adagrad())], max_bytes=20_000_000))
    rows = np.ones((4096, 64), np.float32)
    # A row takes 512 bytes, so about 40,000 fit: nine or so of these calls.
    with pytest.raises(CapacityExceeded, match="'small'"):
        fill(one, rows)
    before = len(one)
    assert before % 4096 == 0
    assert before > 20_000
    assert one.memory_bytes <= 20_000_000
    one.apply_gradients(np.arange(before), np.zeros((before, 64), np.float32))
    one.delete(np.arange(before // 2))
    one.assign(np.arange(10**7, 10**7 + before // 4), rows[:1].repeat(before // 4, axis=0))


def test_a_snapshot_of_another_shape_is_refused_and_the_table_stays_as_it_is(table: Table, tmp_path: Any) -> None:
    other = Table(TableSpec("user", [SliceSpec(3, optimizer=Sgd())]))
    other.assign(ID, ROW)
    other.save(tmp_path / "other")
    with pytest.raises(MonolithError, match="user"):
        table.restore(tmp_path / "other")


def test_entries_of_other_shapes_are_refused(table: Table) -> None:
    ids, times, rows = next(table.export_entries())
    plain = Table(TableSpec("plain", [SliceSpec(3, optimizer=Sgd())]))
    plain.assign(ids, ROW)
    for entries in [
        next(plain.export_entries()),
        (ids, times[:0], rows),
        (ids, times, rows[:0]),
        (ids[:0], times, rows),
    ]:
        with pytest.raises(DimensionMismatch, match=r"'user'.*shapes.*equal slices"):
            table.import_entries(*entries)
