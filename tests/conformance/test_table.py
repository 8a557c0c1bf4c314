"""One suite for the native table, its fake, and the table of a GPU: a table that passes can replace the others.

"gpu" needs a GPU. "gpu_kernels" runs the kernels of a GPU on the processor, by the stand-in of ``host_gpu``.

Rows 1-11, 14, 15, 19 and 26 of the table vectors (spec/embedding_and_layers.md, 7.2) are among these tests, each named
after its row.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from host_gpu import HostGpu, NumpyTable
from monolith.core.errors import CapacityExceeded, MonolithError
from monolith.embedding import Table
from monolith.embedding.admission import SlidingHashFilter
from monolith.embedding.initializers import Constant, Ones, RandomUniform
from monolith.embedding.learning_rates import PolynomialDecay
from monolith.embedding.optimizers import Adagrad, DelayCompensated, Sgd
from monolith.embedding.specs import SliceSpec, TableSpec
from monolith.testing import ReferenceTable

DAY_S = 86400


def spec(dim: int = 1, rate: Any = 0.1, **settings: Any) -> TableSpec:
    return TableSpec("t", [SliceSpec(dim, optimizer=Sgd(), learning_rate=rate)], **settings)


def in_slot(slot: int, signature: int) -> int:
    return (slot << 48) | signature


def column(table: Any, ids: list[int]) -> list[float]:
    """The first column of a lookup, rounded so that 0.1 + 0.2 is 0.3."""
    return [round(float(value), 6) for value in table.lookup(np.array(ids))[:, 0]]


NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
NO_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
GPU_TABLES = [
    pytest.param("gpu", marks=[pytest.mark.gpu, NO_GPU]),
    pytest.param("gpu_kernels", marks=NO_COMPILER),
]

GPU_DIFFERS = {
    "test_the_time_of_a_row_is_that_of_its_last_update_and_may_go_back": "a late update makes no row of a GPU older",
}


@pytest.fixture(params=["native", "reference", *GPU_TABLES])
def make(request: pytest.FixtureRequest) -> Callable[[TableSpec], Any]:
    if request.param == "reference":
        return ReferenceTable
    if request.param == "native":
        return Table
    if reason := GPU_DIFFERS.get(request.node.originalname):
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    return partial(NumpyTable, device="cuda" if request.param == "gpu" else HostGpu())


@pytest.fixture(params=["native", *GPU_TABLES])
def make_bounded(request: pytest.FixtureRequest) -> Callable[[TableSpec], Any]:
    """Make a table that keeps a budget; the fake has none."""
    if request.param == "native":
        return Table
    return partial(NumpyTable, device="cuda" if request.param == "gpu" else HostGpu())


@pytest.fixture
def through_snapshot(make: Any, tmp_path: Path) -> Callable[[Any], Any]:
    """Return a new table with the rows of a snapshot of ``table``."""

    def copy(table: Any) -> Any:
        fresh = make(table.spec)
        if isinstance(table, ReferenceTable):
            fresh.restore_state(table.snapshot_state())
        else:
            table.save(tmp_path / "copy")
            fresh.restore(tmp_path / "copy")
        return fresh

    return copy


# --- reading ----------------------------------------------------------------------------------------------------------


def test_row_1_a_lookup_of_an_absent_id_shows_zeros_and_inserts_nothing(make: Any) -> None:
    table = make(TableSpec("t", [SliceSpec(3, optimizer=Sgd(), initializer=Ones())]))
    rows, found = table.lookup(np.array([5, -5]), return_found=True)
    assert rows.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert rows.dtype == np.float32
    assert found.tolist() == [False, False]
    assert len(table) == 0
    assert table.contains(np.array([5])).tolist() == [False]


def test_a_table_may_show_first_values_for_absent_ids_and_still_inserts_nothing(make: Any) -> None:
    table = make(TableSpec("t", [SliceSpec(2, optimizer=Sgd(), initializer=Constant(0.5))], on_miss="initial"))
    rows, found = table.lookup(np.array([5]), return_found=True)
    assert rows.tolist() == [[0.5, 0.5]]
    assert not found[0]
    assert len(table) == 0


def test_first_values_shown_for_an_absent_id_are_those_its_row_then_gets(make: Any) -> None:
    slices = [SliceSpec(3, optimizer=Sgd(), initializer=RandomUniform(-1.0, 1.0)) for _ in range(2)]
    table = make(TableSpec("t", slices, on_miss="initial", seed=11))
    ids = np.array([0, -1, 2**63 - 1, -(2**63), 123456789])
    shown = table.lookup(ids)
    table.assign_add(ids, np.zeros((5, 6), np.float32))
    assert np.array_equal(table.lookup(ids), shown)
    assert len(np.unique(shown)) == shown.size
    assert (np.abs(shown) < 1).all()


def test_row_19_an_absent_id_has_no_entry(make: Any) -> None:
    assert make(spec()).entry(1) is None


def test_an_entry_shows_values_state_and_time(make: Any) -> None:
    slices = [
        SliceSpec(1, optimizer=Sgd(), initializer=Ones()),
        SliceSpec(2, optimizer=Adagrad(1.0, initial_accumulator_value=0.5)),
    ]
    table = make(TableSpec("t", slices))
    table.apply_gradients(np.array([9]), np.array([[1, 1, 2]], np.float32), learning_rates=[0.5, 0.0], time_s=77)
    entry = table.entry(9)
    assert entry.values.tolist() == [0.5, 0, 0]
    assert [sorted(state) for state in entry.state] == [[], ["norm"]]
    assert entry.state[1]["norm"].tolist() == [1.5, 4.5]
    assert entry.time_s == 77
    assert entry.id == 9


def test_items_yields_every_row_once_in_batches(make: Any) -> None:
    table = make(spec(dim=2))
    ids = np.arange(-50, 50)
    table.assign(ids, np.stack([ids, 2 * ids], 1).astype(np.float32))
    seen = {}
    for batch_ids, rows in table.items(batch_size=7):
        assert 0 < len(batch_ids) <= 7
        seen.update(zip(batch_ids.tolist(), rows.tolist(), strict=True))
    assert seen == {fid: [fid, 2 * fid] for fid in range(-50, 50)}


def test_an_empty_table_yields_no_items(make: Any) -> None:
    assert list(make(spec()).items()) == []


def test_empty_batches_are_fine_everywhere(make: Any) -> None:
    table = make(spec(dim=3))
    none, no_rows = np.array([], np.int64), np.zeros((0, 3), np.float32)
    assert table.lookup(none).shape == (0, 3)
    table.assign(none, no_rows)
    table.assign_add(none, no_rows)
    table.apply_gradients(none, no_rows)
    assert table.lookup_pooled(none, np.array([0])).shape == (0, 3)
    assert table.lookup_pooled(none, np.array([0, 0, 0])).tolist() == [[0, 0, 0]] * 2
    table.apply_pooled_gradients(none, np.array([0, 0]), np.ones((1, 3), np.float32))
    assert table.reinitialize(none).shape == (0,)
    assert table.delete(none) == 0
    assert table.contains(none).shape == (0,)
    assert len(table) == 0


# --- assigning --------------------------------------------------------------------------------------------------------


def test_row_2_assign_add_inserts_and_adds(make: Any) -> None:
    table = make(spec())
    table.assign_add(np.array([0, 1]), np.ones((2, 1), np.float32))
    assert column(table, [0, 1, 2]) == [1, 1, 0]
    assert len(table) == 2


def test_row_3_assign_overwrites(make: Any) -> None:
    table = make(spec())
    table.assign(np.array([0, 1]), np.ones((2, 1), np.float32))
    table.assign(np.array([1]), np.array([[5]], np.float32))
    assert column(table, [0, 1, 2]) == [1, 5, 0]


def test_of_equal_ids_in_one_assign_the_last_wins(make: Any) -> None:
    table = make(spec())
    table.assign(np.array([7, 8, 7]), np.array([[1], [2], [3]], np.float32))
    assert column(table, [7, 8]) == [3, 2]


def test_equal_ids_in_one_assign_add_all_count_on_top_of_the_first_values(make: Any) -> None:
    table = make(TableSpec("t", [SliceSpec(1, optimizer=Sgd(), initializer=Constant(10.0))]))
    table.assign_add(np.array([7, 8, 7]), np.array([[1], [2], [3]], np.float32))
    assert column(table, [7, 8]) == [14, 12]


def test_assign_leaves_the_optimizer_state_alone(make: Any) -> None:
    table = make(TableSpec("t", [SliceSpec(1, optimizer=Adagrad(1.0, initial_accumulator_value=1.0))]))
    table.apply_gradients(np.array([1]), np.array([[2]], np.float32))
    table.assign(np.array([1]), np.array([[0]], np.float32))
    assert table.entry(1).state[0]["norm"].tolist() == [5]


# --- gradients --------------------------------------------------------------------------------------------------------


def test_row_4_without_dedup_each_occurrence_is_a_step(make: Any) -> None:
    table = make(spec())
    table.apply_gradients(np.array([0, 0, 1]), -np.ones((3, 1), np.float32), dedup=False)
    assert column(table, [0, 1]) == [0.2, 0.1]


def test_row_5_with_dedup_gradients_of_equal_ids_are_summed(make: Any) -> None:
    table = make(spec(dim=10))
    table.apply_gradients(np.array([0, 1, 0, 1, 0]), -np.ones((5, 10), np.float32))
    assert table.lookup(np.array([0, 1])) == pytest.approx(np.repeat([[0.3], [0.2]], 10, axis=1))


def test_summing_and_stepping_differ_for_an_optimizer_with_state(make: Any) -> None:
    one = TableSpec("t", [SliceSpec(1, optimizer=Adagrad(1.0, initial_accumulator_value=1.0))])
    summed, stepped = make(one), make(one)
    ids, grads = np.array([4, 4]), np.array([[1], [2]], np.float32)
    summed.apply_gradients(ids, grads)
    stepped.apply_gradients(ids, grads, dedup=False)
    assert summed.entry(4).state[0]["norm"].tolist() == [10]
    assert stepped.entry(4).state[0]["norm"].tolist() == [6]


def test_row_6_the_learning_rate_follows_its_schedule(make: Any) -> None:
    table = make(spec(rate=PolynomialDecay(0.01, 10, 0.11)))
    table.apply_gradients(np.array([0, 0, 1]), -np.ones((3, 1), np.float32), step=1)
    assert column(table, [0, 1]) == [0.04, 0.02]


def test_row_7_updated_ids_need_not_be_those_looked_up(make: Any) -> None:
    table = make(spec())
    table.apply_gradients(np.array([1, 0, 1]), -np.ones((3, 1), np.float32))
    assert column(table, [0, 1]) == [0.1, 0.2]


def test_learning_rates_of_the_call_replace_those_of_the_spec(make: Any) -> None:
    slices = [SliceSpec(1, optimizer=Sgd()), SliceSpec(2, optimizer=Sgd())]
    table = make(TableSpec("t", slices))
    table.apply_gradients(np.array([0]), np.array([[1, 2, 3]], np.float32), learning_rates=[1.0, 2.0])
    assert table.lookup(np.array([0])).tolist() == [[-1, -4, -6]]


def test_a_new_row_starts_from_its_first_values_before_the_step(make: Any) -> None:
    table = make(TableSpec("t", [SliceSpec(2, optimizer=Sgd(0.5), initializer=Constant(3.0))]))
    table.apply_gradients(np.array([1]), np.array([[1, 2]], np.float32))
    assert table.lookup(np.array([1])).tolist() == [[2.5, 2]]


def test_delayed_gradients_are_corrected_by_the_values_they_were_computed_at(make: Any) -> None:
    table = make(TableSpec("t", [SliceSpec(1, optimizer=DelayCompensated(Sgd(1.0), 0.5))]))
    table.assign(np.array([1]), np.array([[4]], np.float32))
    # g' = 2 + 0.5 * 2^2 * (4 - 1) = 8
    table.apply_gradients(np.array([1]), np.array([[2]], np.float32), values_at_gradient=np.array([[1]], np.float32))
    assert column(table, [1]) == [-4]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_is_skipped_and_counted_by_default(make: Any, bad: float) -> None:
    table = make(spec(dim=2, expire_days=400))
    table.assign(np.array([1, 2]), np.ones((2, 2), np.float32), time_s=10)
    grads = np.array([[bad, 1], [1, 1], [1, bad]], np.float32)
    table.apply_gradients(np.array([1, 2, 3]), grads, time_s=20)
    assert table.lookup(np.array([1, 2, 3])) == pytest.approx(np.array([[1, 1], [0.9, 0.9], [0, 0]]))
    assert table.contains(np.array([1, 2, 3])).tolist() == [True, True, False]
    assert [table.entry(1).time_s, table.entry(2).time_s] == [10, 20]
    assert table.stats.nan_rows_skipped == 2


def test_an_id_whose_gradients_sum_to_nan_is_skipped(make: Any) -> None:
    table = make(spec())
    table.apply_gradients(np.array([1, 1]), np.array([[3e38], [3e38]], np.float32))
    assert len(table) == 0
    assert table.stats.nan_rows_skipped == 1


def test_a_table_may_refuse_gradients_that_are_not_finite_and_then_applies_nothing(make: Any) -> None:
    table = make(spec(nan_gradients="error"))
    with pytest.raises(MonolithError, match="'t'"):
        table.apply_gradients(np.array([1, 2]), np.array([[1], [np.nan]], np.float32), time_s=5)
    assert len(table) == 0
    assert table.max_time_s == 0


def test_a_table_may_let_nan_pass(make: Any) -> None:
    table = make(spec(nan_gradients="pass"))
    table.apply_gradients(np.array([1]), np.array([[np.nan]], np.float32))
    assert np.isnan(table.lookup(np.array([1]))).all()


# --- admission --------------------------------------------------------------------------------------------------------


def test_row_8_an_id_enters_at_the_sighting_after_its_threshold(make: Any) -> None:
    table = make(spec(admission=SlidingHashFilter(capacity=300), slot_thresholds={0: 3}))
    after_each_run = []
    for _ in range(4):
        table.apply_gradients(np.array([0, 0, 1]), -np.ones((3, 1), np.float32), dedup=False)
        after_each_run.append(column(table, [0, 1]))
    assert after_each_run == [[0, 0], [0.1, 0], [0.3, 0], [0.5, 0.1]]


def test_with_dedup_an_id_is_asked_for_once_with_all_its_sightings(make: Any) -> None:
    table = make(spec(admission=SlidingHashFilter(capacity=300), slot_thresholds={0: 3}))
    after_each_run = []
    for _ in range(3):
        table.apply_gradients(np.array([0, 0, 1]), -np.ones((3, 1), np.float32))
        after_each_run.append(column(table, [0, 1]))
    # Sightings of id 0 before each run: 0, 2, 4; of id 1: 0, 1, 2.
    assert after_each_run == [[0, 0], [0, 0], [0.2, 0]]


@pytest.mark.parametrize("verb", ["assign", "assign_add"])
def test_row_9_an_id_below_its_threshold_is_dropped_without_a_word(make: Any, verb: str) -> None:
    table = make(spec(admission=SlidingHashFilter(capacity=300), slot_thresholds={0: 2}))
    sizes = []
    for _ in range(3):
        getattr(table, verb)(np.array([6]), np.array([[1]], np.float32))
        sizes.append(len(table))
    assert sizes == [0, 0, 1]
    assert column(table, [6]) == [1]


def test_present_ids_are_never_asked_for(make: Any) -> None:
    table = make(spec(admission=SlidingHashFilter(capacity=300), slot_thresholds={0: 2}))
    table.reinitialize(np.array([6]))
    table.apply_gradients(np.array([6]), np.array([[-1]], np.float32))
    table.assign_add(np.array([6]), np.array([[1]], np.float32))
    assert column(table, [6]) == [1.1]


def test_slots_without_a_threshold_enter_immediately(make: Any) -> None:
    table = make(spec(admission=SlidingHashFilter(capacity=300), slot_thresholds={3: 2}))
    table.assign(np.array([in_slot(3, 1), in_slot(4, 1)]), np.ones((2, 1), np.float32))
    assert table.contains(np.array([in_slot(3, 1), in_slot(4, 1)])).tolist() == [False, True]


def test_thresholds_above_fifteen_work(make: Any) -> None:
    table = make(spec(admission=SlidingHashFilter(capacity=300), slot_thresholds={0: 100}))
    table.assign(np.full(100, 1), np.ones((100, 1), np.float32))
    assert len(table) == 0
    table.assign(np.array([1]), np.ones((1, 1), np.float32))
    assert len(table) == 1


# --- removal and time -------------------------------------------------------------------------------------------------


def test_row_10_reinitialize_gives_first_values_and_returns_which_ids_existed(make: Any) -> None:
    table = make(TableSpec("t", [SliceSpec(2, optimizer=Adagrad(1.0), initializer=Constant(7.0))]))
    table.apply_gradients(np.array([2, 3]), np.ones((2, 2), np.float32), time_s=50)
    assert table.reinitialize(np.array([1, 2, 3])).tolist() == [0, 1, 1]
    assert (table.lookup(np.array([1, 2, 3])) == 7).all()
    fresh = make(table.spec)
    fresh.reinitialize(np.array([1]))
    for fid in (1, 2, 3):
        assert table.entry(fid).time_s == 50
        assert table.entry(fid).state[0]["norm"].tolist() == fresh.entry(1).state[0]["norm"].tolist()


def test_row_11_evict_follows_the_expiry_of_each_slot(make: Any) -> None:
    table = make(spec(expire_days=14, slot_expire_days={1: 5, 2: 6}))
    ids = np.array([in_slot(slot, 9) for slot in (1, 2, 3)])
    table.assign(ids, np.ones((3, 1), np.float32), time_s=1234)
    assert table.evict(now_s=1234 + 5 * DAY_S + 60) == 1
    assert table.contains(ids).tolist() == [False, True, True]


def test_expiry_includes_its_boundary(make: Any) -> None:
    table = make(spec(expire_days=1))
    table.assign(np.array([1]), np.ones((1, 1), np.float32), time_s=100)
    assert table.evict(now_s=100 + DAY_S - 1) == 0
    assert table.evict(now_s=100 + DAY_S) == 1
    assert len(table) == 0


def test_evict_compares_with_the_newest_time_the_table_has_seen(make: Any) -> None:
    table = make(spec(expire_days=1))
    table.assign(np.array([1]), np.ones((1, 1), np.float32), time_s=100)
    table.assign(np.array([2]), np.ones((1, 1), np.float32), time_s=100 + DAY_S)
    assert table.evict() == 1
    assert table.contains(np.array([1, 2])).tolist() == [False, True]


def test_row_14_with_equal_times_nothing_expires(make: Any, through_snapshot: Any) -> None:
    table = make(spec(expire_days=1))
    table.assign(np.arange(10), np.ones((10, 1), np.float32), time_s=0)
    assert table.evict() == 0
    assert len(through_snapshot(table)) == 10


def test_the_time_of_a_row_is_that_of_its_last_update_and_may_go_back(make: Any) -> None:
    table = make(spec(expire_days=400))
    table.apply_gradients(np.array([1]), np.ones((1, 1), np.float32), time_s=500)
    table.apply_gradients(np.array([1]), np.ones((1, 1), np.float32), time_s=300)
    assert table.entry(1).time_s == 300
    assert table.max_time_s == 500


def test_delete_removes_rows_and_counts_them(make: Any) -> None:
    table = make(spec())
    table.assign(np.array([1, 2, 3]), np.ones((3, 1), np.float32))
    assert table.delete(np.array([2, 2, 9])) == 1
    assert table.contains(np.array([1, 2, 3])).tolist() == [True, False, True]
    assert column(table, [2]) == [0]


def test_a_deleted_id_comes_back_fresh(make: Any) -> None:
    table = make(TableSpec("t", [SliceSpec(1, optimizer=Adagrad(1.0, initial_accumulator_value=1.0))]))
    table.apply_gradients(np.array([1]), np.array([[2]], np.float32))
    table.delete(np.array([1]))
    table.assign_add(np.array([1]), np.array([[0]], np.float32))
    assert table.entry(1).state[0]["norm"].tolist() == [1]
    assert column(table, [1]) == [0]


def test_clear_removes_everything(make: Any) -> None:
    table = make(spec())
    table.assign(np.arange(100), np.ones((100, 1), np.float32), time_s=5)
    table.clear()
    assert len(table) == 0
    assert table.lookup(np.arange(100)).sum() == 0


# --- a full table -----------------------------------------------------------------------------------------------------

BUDGET = 8 << 20
"""Room for more rows than a call below has, also beside the smallest index of a GPU table."""
WIDTH = 1000


def full_spec(**settings: Any) -> TableSpec:
    return TableSpec("t", [SliceSpec(WIDTH, optimizer=Sgd(1.0))], max_bytes=BUDGET, **settings)


def push(table: Any, first: int, count: int, time_s: int) -> None:
    table.apply_gradients(np.arange(first, first + count), np.ones((count, WIDTH), np.float32), time_s=time_s)


def test_a_full_table_refuses_new_rows_and_keeps_the_present_ones(make_bounded: Any) -> None:
    table, added = make_bounded(full_spec()), 0

    def fill() -> None:
        nonlocal added
        for step in range(30):
            push(table, added, 200, 1000 + step)
            added += 200

    with pytest.raises(CapacityExceeded, match="max_bytes"):
        fill()
    assert added >= 400
    assert len(table) == added
    assert table.contains(np.arange(added)).all()
    assert table.memory_bytes <= BUDGET


@pytest.mark.parametrize("settings", [{}, {"expire_days": 400}], ids=["order", "times"])
def test_a_full_table_evicts_the_rows_that_were_updated_longest_ago(make_bounded: Any, settings: Any) -> None:
    table = make_bounded(full_spec(when_full="evict_oldest", **settings))
    hot = np.arange(10**6, 10**6 + 10)
    table.drain_touched()
    for step in range(14):
        push(table, step * 200, 200, 1000 + step)
        table.apply_gradients(hot, np.ones((10, WIDTH), np.float32), time_s=1000 + step)
        assert table.memory_bytes <= BUDGET
    rows = len(table)
    assert 400 < rows < 2700
    assert table.stats.rows_evicted_full == 2810 - rows
    assert table.contains(hot).all()
    assert table.contains(np.arange(2600, 2800)).all()
    gone = np.flatnonzero(~table.contains(np.arange(200)))
    assert len(gone) > 100
    assert np.isin(gone, table.drain_touched()).all()
    assert table.lookup(hot)[0, 0] == -14


def test_a_call_with_more_ids_than_a_full_table_holds_changes_nothing(make_bounded: Any) -> None:
    table = make_bounded(full_spec(when_full="evict_oldest"))
    push(table, 0, 200, 5)
    with pytest.raises(CapacityExceeded, match="max_bytes"):
        push(table, 10_000, 3000, 6)
    assert len(table) == 200
    assert table.stats.rows_evicted_full == 0


# --- bags -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def bags() -> tuple[np.ndarray, np.ndarray]:
    #  bag 0: [1, 2]   bag 1: empty   bag 2: [2, 3, 2]
    return np.array([1, 2, 2, 3, 2]), np.array([0, 2, 2, 5])


def test_pooled_lookups_sum_average_or_list_the_rows_of_each_bag(make: Any, bags: Any) -> None:
    table = make(spec(dim=2))
    table.assign(np.array([1, 2]), np.array([[1, 10], [2, 20]], np.float32))  # 3 stays absent
    assert table.lookup_pooled(*bags).tolist() == [[3, 30], [0, 0], [4, 40]]
    assert table.lookup_pooled(*bags, mode="mean") == pytest.approx(np.array([[1.5, 15], [0, 0], [4 / 3, 40 / 3]]))
    assert table.lookup_pooled(*bags, mode=("first", 2)).tolist() == [
        [[1, 10], [2, 20]],
        [[0, 0], [0, 0]],
        [[2, 20], [0, 0]],
    ]


def test_a_pooled_gradient_reaches_every_occurrence(make: Any, bags: Any) -> None:
    table = make(spec(rate=1.0))
    table.apply_pooled_gradients(*bags, np.array([[1], [100], [10]], np.float32))
    assert column(table, [1, 2, 3]) == [-1, -21, -10]


def test_a_gradient_of_a_mean_is_divided_by_the_length_of_the_bag(make: Any, bags: Any) -> None:
    table = make(spec(rate=1.0))
    table.apply_pooled_gradients(*bags, np.array([[2], [100], [30]], np.float32), mode="mean")
    assert column(table, [1, 2, 3]) == [-1, -21, -10]


def test_a_gradient_of_first_n_leaves_ids_beyond_n_alone(make: Any) -> None:
    table = make(spec(rate=1.0))
    ids, offsets = np.array([1, 2, 9, 1]), np.array([0, 3, 4])
    grads = np.array([[[1], [2]], [[4], [99]]], np.float32)
    table.apply_pooled_gradients(ids, offsets, grads, mode=("first", 2))
    assert column(table, [1, 2, 9]) == [-5, -2, 0]
    assert table.contains(np.array([9])).tolist() == [False]


def test_pooled_gradients_are_the_same_as_gradients_per_occurrence(make: Any, bags: Any) -> None:
    one = TableSpec("t", [SliceSpec(3, optimizer=Adagrad(0.1))])
    pooled, plain = make(one), make(one)
    ids, offsets = bags
    grads = np.array([[1, 2, 3], [4, 5, 6], [-7, 8, -9]], np.float32)
    pooled.apply_pooled_gradients(ids, offsets, grads, time_s=3, step=2)
    plain.apply_gradients(ids, np.repeat(grads, np.diff(offsets), axis=0), time_s=3, step=2)
    assert np.array_equal(pooled.lookup(ids), plain.lookup(ids))
    assert pooled.max_time_s == 3


# --- snapshots, changes, threads --------------------------------------------------------------------------------------


def test_a_snapshot_keeps_values_state_times_and_the_newest_time(make: Any, through_snapshot: Any) -> None:
    table = make(TableSpec("t", [SliceSpec(3, optimizer=Adagrad(0.1), initializer=RandomUniform())]))
    ids = np.array([0, -1, 2**63 - 1, -(2**63)])
    table.apply_gradients(ids, np.arange(12, dtype=np.float32).reshape(4, 3), time_s=40)
    table.assign(ids[:1], np.ones((1, 3), np.float32), time_s=90)
    copy = through_snapshot(table)
    assert len(copy) == 4
    assert copy.max_time_s == 90
    for fid in ids.tolist():
        ours, theirs = table.entry(fid), copy.entry(fid)
        assert np.array_equal(ours.values, theirs.values)
        assert np.array_equal(ours.state[0]["norm"], theirs.state[0]["norm"])
        assert ours.time_s == theirs.time_s


def test_row_15_rows_made_after_a_snapshot_vanish_when_it_is_restored(make: Any, tmp_path: Path) -> None:
    table = make(spec())
    table.assign(np.array([1]), np.ones((1, 1), np.float32))
    if isinstance(table, ReferenceTable):
        state = table.snapshot_state()
        table.assign(np.array([2]), np.ones((1, 1), np.float32))
        table.restore_state(state)
    else:
        table.save(tmp_path / "t")
        table.assign(np.array([2]), np.ones((1, 1), np.float32))
        table.restore(tmp_path / "t")
    assert table.contains(np.array([1, 2])).tolist() == [True, False]


def test_a_restore_may_keep_the_rows_that_are_there(make: Any, tmp_path: Path) -> None:
    table = make(spec())
    table.assign(np.array([1]), np.ones((1, 1), np.float32))
    later = np.array([[5]], np.float32)
    if isinstance(table, ReferenceTable):
        state = table.snapshot_state()
        table.assign(np.array([1]), later)
        table.assign(np.array([2]), later)
        table.restore_state(state, clear=False)
    else:
        table.save(tmp_path / "t")
        table.assign(np.array([1]), later)
        table.assign(np.array([2]), later)
        table.restore(tmp_path / "t", clear=False)
    assert column(table, [1, 2]) == [1, 5]


def test_sightings_survive_a_snapshot(make: Any, through_snapshot: Any) -> None:
    table = make(spec(admission=SlidingHashFilter(capacity=300), slot_thresholds={0: 2}))
    table.assign(np.array([6, 6]), np.ones((2, 1), np.float32))
    copy = through_snapshot(table)
    copy.assign(np.array([6]), np.ones((1, 1), np.float32))
    assert len(copy) == 1


def test_the_first_drain_returns_all_rows_and_later_drains_changed_rows(make: Any) -> None:
    table = make(spec())
    table.assign(np.array([1, 2, 3, 4]), np.ones((4, 1), np.float32))
    assert sorted(table.drain_touched().tolist()) == [1, 2, 3, 4]
    assert table.drain_touched().tolist() == []
    table.lookup(np.array([1, 2, 3, 4]))
    assert table.drain_touched().tolist() == []


@pytest.mark.parametrize(
    "change",
    [
        lambda table, ids: table.assign(ids, np.ones((2, 1), np.float32)),
        lambda table, ids: table.assign_add(ids, np.ones((2, 1), np.float32)),
        lambda table, ids: table.apply_gradients(ids, np.ones((2, 1), np.float32)),
        lambda table, ids: table.apply_pooled_gradients(ids, np.array([0, 2]), np.ones((1, 1), np.float32)),
        lambda table, ids: table.reinitialize(ids),
        lambda table, ids: table.delete(ids),
        lambda table, ids: table.evict(now_s=2**40),
    ],
    ids=["assign", "assign_add", "apply_gradients", "apply_pooled_gradients", "reinitialize", "delete", "evict"],
)
def test_every_kind_of_change_is_drained(make: Any, change: Callable[[Any, Any], Any]) -> None:
    table = make(spec(expire_days=400))
    table.assign(np.array([5, 6]), np.ones((2, 1), np.float32))
    table.drain_touched()
    change(table, np.array([6, 5]))
    assert sorted(table.drain_touched().tolist()) == [5, 6]
    assert table.drain_touched().tolist() == []


def test_ids_that_were_filtered_or_skipped_are_not_drained(make: Any) -> None:
    table = make(spec(admission=SlidingHashFilter(capacity=300), slot_thresholds={0: 2}))
    table.drain_touched()
    table.assign(np.array([6]), np.ones((1, 1), np.float32))
    table.apply_gradients(np.array([in_slot(1, 1)]), np.array([[np.nan]], np.float32))
    assert table.drain_touched().tolist() == []


def test_ids_of_the_whole_range_are_ordinary_ids(make: Any) -> None:
    table = make(spec())
    ids = np.array([0, 1, -1, 2**63 - 1, -(2**63), -(2**63) + 1, 2**48, -(2**48)])
    table.assign(ids, np.arange(1, 9, dtype=np.float32).reshape(8, 1))
    assert column(table, ids.tolist()) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(table) == 8


def test_row_26_many_threads_update_one_table() -> None:
    table = Table(spec(rate=0.01))  # the fake is for one thread

    def work(i: int) -> None:
        table.assign_add(np.array([i]), np.array([[i]], np.float32))
        table.apply_gradients(np.array([i]), np.array([[-200 * i]], np.float32))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert column(table, list(range(100))) == [3 * i for i in range(100)]
