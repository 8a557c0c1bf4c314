"""Abilities of the native table alone: threads, memory, explanations, serving copies, snapshots during training.

Everything it shares with its fake is in tests/conformance/test_table.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolith import _native
from monolith.core.errors import CapacityExceeded, MonolithError
from monolith.embedding import MultiTable, Table, set_threads, snapshot
from monolith.embedding.admission import ProbabilisticFilter, SlidingHashFilter
from monolith.embedding.compressors import FixedR8, Fp16
from monolith.embedding.initializers import RandomUniform
from monolith.embedding.optimizers import Adagrad, Sgd, StochasticRoundingFp16
from monolith.embedding.specs import SliceSpec, TableSpec
from monolith.testing import ReferenceTable

DAY_S = 86400


def spec(dim: int = 4, **settings: Any) -> TableSpec:
    return TableSpec("t", [SliceSpec(dim, optimizer=Adagrad(0.1), initializer=RandomUniform())], **settings)


@pytest.fixture
def restored_threads() -> Iterator[None]:
    before = _native.threads()
    yield
    set_threads(before)


def run_all(*work: Callable[[], None]) -> None:
    """Run each in a thread; raise the first error."""
    errors: list[BaseException] = []

    def guarded(one: Callable[[], None]) -> None:
        try:
            one()
        except BaseException as exc:
            errors.append(exc)

    threads = [threading.Thread(target=guarded, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


# --- threads ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("restored_threads")
@pytest.mark.parametrize("admission", [SlidingHashFilter(300), ProbabilisticFilter()], ids=lambda part: part.kind)
def test_a_deterministic_table_gives_the_same_bytes_for_any_number_of_threads(admission: Any) -> None:
    optimizer = StochasticRoundingFp16(Adagrad(0.1))
    slices = [SliceSpec(8, optimizer=optimizer, initializer=RandomUniform())]
    # The small filter overflows and forgets, so even the order in which ids are asked for would show.
    one = TableSpec("t", slices, admission=admission, slot_thresholds={0: 1}, deterministic=True)
    results = []
    for threads in (1, 2, 4):
        set_threads(threads)
        table = Table(one)
        rng = np.random.default_rng(1)
        for step in range(6):
            ids = rng.zipf(1.2, 20_000) % 30_000
            table.apply_gradients(ids, rng.normal(size=(20_000, 8)).astype(np.float32), step=step)
        results.append(table.lookup(np.arange(30_000)))
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])
    assert np.any(results[0])


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, 10_000])
def test_a_silly_number_of_threads_is_refused(threads: Any) -> None:
    with pytest.raises(MonolithError, match="threads"):
        set_threads(threads)


def test_a_row_is_never_seen_half_written() -> None:
    table = Table(TableSpec("t", [SliceSpec(64, optimizer=Sgd())]))
    ids = np.arange(300)

    def write() -> None:
        for number in range(1, 200):
            table.assign(ids, np.full((300, 64), number, np.float32))

    def read() -> None:
        for _ in range(200):
            rows = table.lookup(ids)
            assert (rows == rows[:, :1]).all()

    run_all(write, read)


def test_rows_stay_right_while_others_come_and_go() -> None:
    table = Table(spec(dim=3))
    kept = np.arange(1000)
    values = np.random.default_rng(3).normal(size=(1000, 3)).astype(np.float32)
    table.assign(kept, values)

    def churn(start: int) -> None:
        for round_number in range(20):
            ids = np.arange(start, start + 5000) + round_number * 100
            table.assign(ids, np.ones((5000, 3), np.float32))
            table.delete(ids)

    def read() -> None:
        for _ in range(100):
            assert np.array_equal(table.lookup(kept), values)

    run_all(lambda: churn(10**6), lambda: churn(10**9), read)
    assert len(table) == 1000


# --- snapshots during training ----------------------------------------------------------------------------------------


def test_a_snapshot_taken_during_training_holds_whole_rows_of_one_instant(tmp_path: Path) -> None:
    table = Table(TableSpec("t", [SliceSpec(16, optimizer=Sgd())]))
    ids = np.arange(5000)
    table.assign(ids, np.zeros((5000, 16), np.float32))
    done = threading.Event()

    def train() -> None:
        number = 0
        while not done.is_set():
            number += 1
            table.assign(ids, np.full((5000, 16), number, np.float32), time_s=number)
            extra = np.arange(10**6, 10**6 + 500) + number
            table.assign(extra, np.full((500, 16), -1, np.float32), time_s=number)
            table.delete(extra[:250])

    def save() -> None:
        try:
            for round_number in range(10):
                table.save(tmp_path / "t", shards=1 + round_number % 3)
                rows, found = Table.load(tmp_path / "t").lookup(ids, return_found=True)
                assert found.all()
                assert (rows == rows[:, :1]).all()
                # The cut falls inside at most one call of the trainer.
                assert rows.max() - rows.min() <= 1
        finally:
            done.set()

    run_all(train, save)


@pytest.mark.parametrize(
    "change",
    [
        lambda table, ids: table.apply_gradients(ids, np.ones((len(ids), 4), np.float32), time_s=9),
        lambda table, ids: table.apply_gradients(ids, np.ones((len(ids), 4), np.float32), time_s=9, dedup=False),
        lambda table, ids: table.apply_pooled_gradients(ids, [0, len(ids)], np.ones((1, 4), np.float32), time_s=9),
        lambda table, ids: table.assign(ids, np.ones((len(ids), 4), np.float32), time_s=9),
        lambda table, ids: table.assign_add(ids, np.ones((len(ids), 4), np.float32), time_s=9),
        lambda table, ids: table.reinitialize(ids),
        lambda table, ids: table.delete(ids),
        lambda table, ids: table.evict(now_s=2**40, force=True),
    ],
    ids=["gradients", "no dedup", "pooled", "assign", "assign_add", "reinitialize", "delete", "evict"],
)
def test_changes_after_the_cut_do_not_reach_the_snapshot(tmp_path: Path, change: Callable[[Table, Any], Any]) -> None:
    table = Table(spec())
    ids = np.arange(1000)
    table.apply_gradients(ids, np.random.default_rng(6).normal(size=(1000, 4)).astype(np.float32), time_s=5)
    expected = [table.entry(fid) for fid in ids.tolist()]
    cut = _native.Cut(table._native)
    change(table, ids[:500])
    change(table, ids[250:])  # some rows twice
    table.assign(np.arange(5000, 6000), np.ones((1000, 4), np.float32))  # takes the memory of removed rows
    parts = cut.write(1, [str(tmp_path / f"{i}.rows") for i in range(2)])
    copy = Table(spec())
    _native.read_snapshot(copy._native, 1, parts, 0, 1)
    assert len(copy) == 1000
    for before in expected:
        assert before is not None
        after = copy.entry(before.id)
        assert after is not None
        assert np.array_equal(after.values, before.values)
        assert np.array_equal(after.state[0]["norm"], before.state[0]["norm"])
        assert after.time_s == before.time_s


def test_a_snapshot_saved_in_parts_is_loaded_in_any_other_number_of_parts(tmp_path: Path) -> None:
    table = Table(spec())
    ids = np.random.default_rng(4).integers(-(2**63), 2**63 - 1, 2000)
    table.apply_gradients(ids, np.ones((2000, 4), np.float32))
    table.save(tmp_path / "t", shards=3)
    seen = []
    for index in range(5):
        piece = Table(spec())
        piece.restore(tmp_path / "t", shard=(index, 5))
        seen += [fid for batch, _ in piece.items() for fid in batch.tolist()]
        assert all((fid % 2**64) % 5 == index for batch, _ in piece.items() for fid in batch.tolist())
    assert sorted(seen) == sorted(set(ids.tolist()))


def test_a_table_is_restored_under_an_older_name(tmp_path: Path) -> None:
    old = Table(TableSpec("old", [SliceSpec(1, optimizer=Sgd())]))
    old.assign(np.array([1]), np.ones((1, 1), np.float32))
    old.save(tmp_path / "t")
    new = Table(TableSpec("new", [SliceSpec(1, optimizer=Sgd())], extra_restore_names=("older", "old")))
    new.restore(tmp_path / "t")
    assert len(new) == 1


def test_a_table_with_a_bare_function_as_rate_is_restored_by_its_spec_only(tmp_path: Path) -> None:
    one = TableSpec("t", [SliceSpec(1, optimizer=Sgd(), learning_rate=lambda: 0.5)])
    table = Table(one)
    table.assign(np.array([1]), np.ones((1, 1), np.float32))
    table.save(tmp_path / "t")
    with pytest.raises(MonolithError, match="bare function"):
        Table.load(tmp_path / "t")
    again = Table(one)
    again.restore(tmp_path / "t")
    assert len(again) == 1


# --- serving ----------------------------------------------------------------------------------------------------------


def test_a_serving_table_is_smaller_and_survives_a_snapshot(tmp_path: Path) -> None:
    table = Table(TableSpec("t", [SliceSpec(64, optimizer=Adagrad(), compressor=Fp16())]))
    ids = np.arange(20_000)
    table.assign(ids, np.random.default_rng(5).normal(size=(20_000, 64)).astype(np.float32), time_s=5)
    serving = table.to_serving()
    assert serving.memory_bytes < 0.5 * table.memory_bytes
    serving.save(tmp_path / "s")
    again = Table.load(tmp_path / "s")
    assert np.array_equal(again.lookup(ids), serving.lookup(ids))
    assert again.is_serving


def test_a_serving_table_takes_assignments_and_refuses_to_train() -> None:
    serving = Table(spec(dim=2)).to_serving()
    serving.assign(np.array([1]), np.array([[1, 2]], np.float32))
    serving.assign_add(np.array([1]), np.array([[1, 1]], np.float32))
    assert serving.lookup(np.array([1])).tolist() == [[2, 3]]
    with pytest.raises(MonolithError, match="serving"):
        serving.apply_gradients(np.array([1]), np.ones((1, 2), np.float32))


# --- explanations and memory ------------------------------------------------------------------------------------------


def test_explain_states_why_an_id_is_present_or_absent() -> None:
    table = Table(spec(expire_days=2, admission=SlidingHashFilter(300), slot_thresholds={1: 3}))
    rare = (1 << 48) | 5
    row = np.ones((1, 4), np.float32)
    table.assign(np.array([1, 2]), row.repeat(2, axis=0), time_s=100)
    table.assign(np.array([rare, rare]), row.repeat(2, axis=0))
    table.delete(np.array([2]))
    assert "present" in table.explain(1)
    assert "100" in table.explain(1)
    assert "deleted" in table.explain(2)
    assert "never seen" in table.explain(3)
    assert "below threshold: seen 2 times" in table.explain(rare)
    table.evict(now_s=100 + 2 * DAY_S)
    assert "expired" in table.explain(1)


def test_explain_of_a_skipped_gradient_does_not_invent_a_row() -> None:
    table = Table(spec())
    table.apply_gradients(np.array([1]), np.full((1, 4), np.nan, np.float32))
    assert "never seen" in table.explain(1)


def test_the_memory_of_rows_that_left_is_used_again() -> None:
    table = Table(spec(dim=32))
    rows = np.ones((10_000, 32), np.float32)
    table.assign(np.arange(10_000), rows)
    sizes = []
    for round_number in range(1, 31):
        table.delete(np.arange(10_000) + (round_number - 1) * 10_000)
        table.assign(np.arange(10_000) + round_number * 10_000, rows)
        sizes.append(table.memory_bytes)
    # The first rounds fill the list of removals that explain() reads, which has a fixed length.
    assert max(sizes[10:]) < 1.05 * sizes[10]


def test_clear_gives_the_memory_back() -> None:
    table = Table(spec(dim=32))
    empty = table.memory_bytes
    table.assign(np.arange(100_000), np.ones((100_000, 32), np.float32))
    assert table.memory_bytes > 100_000 * 32 * 8
    table.clear()
    assert table.memory_bytes < empty + 1_000_000


def test_torch_tensors_are_accepted() -> None:
    torch = pytest.importorskip("torch", exc_type=ImportError)
    table = Table(spec(dim=2))
    table.assign(torch.tensor([1, 2]), torch.ones(2, 2))
    table.apply_gradients(torch.tensor([1]), torch.zeros(1, 2))
    assert table.lookup(torch.tensor([1, 2])).tolist() == [[1, 1], [1, 1]]
    table.assign([2], torch.full((1, 2), 1.5, dtype=torch.bfloat16, requires_grad=True))
    assert table.lookup([2]).tolist() == [[1.5, 1.5]]


# --- defects found before the first release; see docs/reference/bugs.md ----------------------------------------------


@pytest.mark.usefixtures("restored_threads")
def test_a_deterministic_table_with_a_filter_never_deadlocks_with_a_lock_of_all_parts(tmp_path: Path) -> None:
    set_threads(4)
    table = Table(spec(1, admission=SlidingHashFilter(capacity=100_000), slot_thresholds={0: 5}, deterministic=True))
    grads = np.ones((512, 1), np.float32)
    done = threading.Event()

    def train(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(150):
            table.apply_gradients(rng.integers(0, 1 << 40, 512), grads)

    def until_done(action: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            while not done.is_set():
                action()

        return run

    def train_both() -> None:
        try:
            run_all(lambda: train(0), lambda: train(1))
        finally:
            done.set()

    ids = np.random.default_rng(2).integers(0, 1 << 40, 4096)
    run_all(
        train_both,
        until_done(table.drain_touched),
        until_done(lambda: table.lookup(ids)),
        until_done(lambda: table.save(tmp_path / "snapshot")),
    )


def test_saves_to_one_folder_from_several_threads_take_turns(tmp_path: Path) -> None:
    tables = [Table(spec()) for _ in range(3)]
    for number, table in enumerate(tables):
        table.assign(np.arange(number + 1), np.ones((number + 1, 4)))
    run_all(*(lambda table=table: [table.save(tmp_path / "s", shards=2) for _ in range(8)] for table in tables))  # type: ignore[misc]
    assert len(Table.load(tmp_path / "s")) in (1, 2, 3)
    assert len(list((tmp_path / "s").iterdir())) == 3


def test_a_serving_table_admits_every_id() -> None:
    table = Table(spec(admission=SlidingHashFilter(capacity=1000), slot_thresholds={0: 5}))
    serving = table.to_serving()
    serving.assign([1, 2], np.ones((2, 4)))
    assert serving.contains([1, 2]).all()


def test_a_serving_snapshot_is_refused_by_a_table_that_compresses_otherwise(tmp_path: Path) -> None:
    def with_range(r: float) -> Table:
        return Table(TableSpec("t", [SliceSpec(2, optimizer=Sgd(), compressor=FixedR8(r))])).to_serving()

    saved = with_range(1.0)
    saved.assign([1], [[0.5, 0.25]])
    saved.save(tmp_path / "s")
    with pytest.raises(MonolithError, match="slices"):
        with_range(8.0).restore(tmp_path / "s")
    same = with_range(1.0)
    same.restore(tmp_path / "s")
    assert same.lookup([1]).tolist() == [[0.5, 0.25]]


def test_a_restore_that_cannot_fit_the_budget_changes_nothing(tmp_path: Path) -> None:
    big = Table(spec())
    big.assign(np.arange(10_000), np.ones((10_000, 4)))
    big.save(tmp_path / "s")
    small = Table(spec(max_bytes=100_000))
    small.assign([1], np.ones((1, 4)))
    with pytest.raises(CapacityExceeded, match="Nothing was changed"):
        small.restore(tmp_path / "s")
    assert small.contains([1]).all()


@pytest.mark.parametrize("counts", [[-1, 1], [0.5, 1.0], [1]], ids=["negative", "fractions", "too few"])
def test_counts_that_count_nothing_are_refused(counts: list[float]) -> None:
    table = Table(spec())
    with pytest.raises(MonolithError, match="counts"):
        table.apply_gradients([1, 2], np.ones((2, 4)), counts=counts)
    assert len(table) == 0


def test_the_draws_of_a_probabilistic_filter_resume_after_a_snapshot(tmp_path: Path) -> None:
    def train(table: Table, first: int) -> None:
        for step in range(first, first + 20):
            table.apply_gradients(np.arange(300), np.ones((300, 4)), step=step)

    rule = spec(admission=ProbabilisticFilter(), slot_thresholds={0: 50})
    straight, stopped = Table(rule), Table(rule)
    train(straight, 0)
    train(straight, 20)
    train(stopped, 0)
    stopped.save(tmp_path / "s")
    resumed = Table.load(tmp_path / "s")
    train(resumed, 20)
    assert resumed.contains(np.arange(300)).tolist() == straight.contains(np.arange(300)).tolist()


def test_several_serving_tables_load_together(tmp_path: Path) -> None:
    tables = MultiTable([spec_named(name) for name in ("a", "b")])
    tables.apply_gradients({"a": [1], "b": [2]}, {"a": np.ones((1, 4)), "b": np.ones((1, 4))})
    snapshot.save([tables[name].to_serving() for name in tables], tmp_path / "s")
    loaded = MultiTable.load(tmp_path / "s")
    assert [loaded[name].is_serving for name in loaded] == [True, True]
    assert loaded.lookup({"b": [2]})["b"].any()


def spec_named(name: str) -> TableSpec:
    return TableSpec(name, [SliceSpec(4, optimizer=Sgd(0.1))])


@pytest.mark.parametrize("on_miss", ["zeros", "initial"])
@pytest.mark.parametrize("mode", ["sum", "mean", ("first", 2), ("first", 6000)])
@pytest.mark.parametrize("dim", [4, 5])
def test_bags_longer_than_a_block_are_pooled_as_the_plain_model_does(dim: int, mode: Any, on_miss: Any) -> None:
    native, model = Table(spec(dim, on_miss=on_miss)), ReferenceTable(spec(dim, on_miss=on_miss))
    rng = np.random.default_rng(dim)
    known = np.arange(3000)
    for table in (native, model):
        table.assign(known, np.random.default_rng(1).normal(size=(3000, dim)).astype(np.float32))
    offsets = np.cumsum([0, 5000, 0, 0, 3, 4093, 9000, 1, 0])
    ids = rng.integers(0, 4000, offsets[-1])
    assert np.array_equal(native.lookup_pooled(ids, offsets, mode), model.lookup_pooled(ids, offsets, mode))
