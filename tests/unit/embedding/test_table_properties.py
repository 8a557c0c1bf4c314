"""Random sequences of operations on the native table and on a plain model, compared after every step.

Hypothesis shrinks a difference to the shortest sequence that shows it and prints how to run that again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from monolith.embedding import Table
from monolith.embedding.admission import NoFilter, SlidingHashFilter
from monolith.embedding.compressors import FixedR8, Fp16, Fp32
from monolith.embedding.initializers import Constant, RandomUniform, Zeros
from monolith.embedding.learning_rates import PolynomialDecay
from monolith.embedding.optimizers import OPTIMIZERS, BatchSoftmax, DelayCompensated
from monolith.embedding.specs import SliceSpec, TableSpec
from monolith.testing import ReferenceTable

DAY_S = 86400
CHECKED_ROWS = 200
"""Rows of a large table that are compared after each step."""
# Few enough that sequences meet the same ids again; slots 0, 1 and 2, and the ends of the range.
POOL = [0, 1, 2, 3, 5, -1, 2**63 - 1, -(2**63), (1 << 48) | 7, (1 << 48) | 8, (2 << 48) | 7, -(1 << 50)]

any_id = st.one_of(st.sampled_from(POOL), st.integers(-(2**63), 2**63 - 1))
id_lists = st.lists(any_id, max_size=12).map(lambda ids: np.array(ids, np.int64))
times = st.one_of(st.integers(0, 10), st.integers(0, 40).map(lambda day: day * DAY_S))
steps = st.integers(0, 500)
seeds = st.integers(0, 2**32 - 1)
plain_optimizers = [cls() for kind, cls in OPTIMIZERS.items() if kind not in ("dc", "stochastic_rounding_float16")]


@st.composite
def slice_specs(draw: st.DrawFn) -> SliceSpec:
    optimizer = draw(st.sampled_from([*plain_optimizers, DelayCompensated(plain_optimizers[1], 0.1)]))
    return SliceSpec(
        1 if isinstance(optimizer, BatchSoftmax) else draw(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 13])),
        optimizer=optimizer,
        initializer=draw(st.sampled_from([Zeros(), Constant(0.25), RandomUniform(-0.5, 0.5)])),
        compressor=draw(st.sampled_from([Fp32(), Fp32(), Fp16(), FixedR8(2.0)])),
        learning_rate=draw(st.sampled_from([None, 0.125, PolynomialDecay(0.0, 100, 0.5)])),
    )


table_specs = st.builds(
    TableSpec,
    name=st.sampled_from(["t", "user"]),
    slices=st.lists(slice_specs(), min_size=1, max_size=3),
    expire_days=st.sampled_from([3, 20, 36500]),
    slot_expire_days=st.sampled_from([{}, {1: 1, 2: 10}]),
    admission=st.sampled_from([NoFilter(), SlidingHashFilter(1_000_000)]),
    slot_thresholds=st.sampled_from([{}, {0: 1, 1: 3}]),
    on_miss=st.sampled_from(["zeros", "initial"]),
    nan_gradients=st.sampled_from(["skip", "pass"]),
    seed=st.sampled_from([0, 9]),
    deterministic=st.booleans(),
)


def numbers(seed: int, shape: tuple[int, ...], poisoned: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    made = rng.normal(size=shape).astype(np.float32)
    if poisoned and made.size:
        made.flat[rng.integers(made.size)] = rng.choice([np.nan, np.inf, -np.inf])
    return made


def offsets_for(seed: int, count: int) -> np.ndarray:
    cuts = np.random.default_rng(seed).integers(0, count + 1, 4)
    return np.concatenate([[0], np.sort(cuts), [count]]).astype(np.int64)


class TableMachine(RuleBasedStateMachine):
    """Does everything twice, and looks at everything after each step."""

    @initialize(spec=table_specs)
    def make(self, spec: TableSpec) -> None:
        self.spec = spec
        self.native: Any = Table(spec)
        self.native.force_expiry = True  # the guard against wrong event times has its own tests
        self.model: Any = ReferenceTable(spec)
        self.folder = Path(tempfile.mkdtemp(prefix="monolith-table-"))

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    def both(self, verb: str, *args: Any, **keywords: Any) -> None:
        """Call both, and require the same answer."""
        ours = getattr(self.native, verb)(*args, **keywords)
        theirs = getattr(self.model, verb)(*args, **keywords)
        assert np.array_equal(np.asarray(ours), np.asarray(theirs)), verb

    # --- writes ---

    @rule(verb=st.sampled_from(["assign", "assign_add"]), ids=id_lists, seed=seeds, time_s=times)
    def assign(self, verb: str, ids: np.ndarray, seed: int, time_s: int) -> None:
        rows = numbers(seed, (len(ids), self.spec.dim))
        for table in (self.native, self.model):
            getattr(table, verb)(ids, rows, time_s=time_s)

    @rule(ids=id_lists, seed=seeds, time_s=times, step=steps, dedup=st.booleans(), poisoned=st.booleans())
    def apply_gradients(self, ids: Any, seed: int, time_s: int, step: int, dedup: bool, poisoned: bool) -> None:
        grads = numbers(seed, (len(ids), self.spec.dim), poisoned)
        for table in (self.native, self.model):
            table.apply_gradients(ids, grads, time_s=time_s, step=step, dedup=dedup)

    @rule(ids=id_lists, seed=seeds, step=steps, rate=st.sampled_from([0.0, 0.5]))
    def apply_late_gradients(self, ids: np.ndarray, seed: int, step: int, rate: float) -> None:
        shape = (len(ids), self.spec.dim)
        rates = [rate] * len(self.spec.slices)
        for table in (self.native, self.model):
            table.apply_gradients(
                ids,
                numbers(seed, shape),
                values_at_gradient=numbers(seed + 1, shape),
                learning_rates=rates,
                step=step,
            )

    @rule(
        ids=id_lists,
        seed=seeds,
        time_s=times,
        step=steps,
        mode=st.sampled_from(["sum", "mean", ("first", 1), ("first", 3)]),
    )
    def apply_pooled_gradients(self, ids: np.ndarray, seed: int, time_s: int, step: int, mode: Any) -> None:
        offsets = offsets_for(seed, len(ids))
        bags = len(offsets) - 1
        shape = (bags, mode[1], self.spec.dim) if isinstance(mode, tuple) else (bags, self.spec.dim)
        for table in (self.native, self.model):
            table.apply_pooled_gradients(ids, offsets, numbers(seed, shape), mode=mode, time_s=time_s, step=step)

    @rule(start=st.integers(-(2**40), 2**40), count=st.integers(500, 3000), time_s=times)
    def grow(self, start: int, count: int, time_s: int) -> None:
        ids = np.arange(start, start + count)
        rows = numbers(count, (count, self.spec.dim))
        for table in (self.native, self.model):
            table.assign(ids, rows, time_s=time_s)

    @rule(ids=id_lists)
    def reinitialize(self, ids: np.ndarray) -> None:
        self.both("reinitialize", ids)

    # --- removal ---

    @rule(ids=id_lists)
    def delete(self, ids: np.ndarray) -> None:
        self.both("delete", ids)

    @rule(now_s=st.one_of(st.none(), times, st.just(2**33)))
    def evict(self, now_s: int | None) -> None:
        self.both("evict", now_s)

    @rule()
    def delete_most_of_a_large_table(self) -> None:
        ids = np.concatenate([ids for ids, _ in self.model.items()] or [np.zeros(0, np.int64)])
        self.both("delete", ids[: len(ids) * 9 // 10])

    @rule()
    def clear(self) -> None:
        self.native.clear()
        self.model.clear()

    # --- reads that are not in the invariant ---

    @rule(ids=id_lists, seed=seeds, mode=st.sampled_from(["sum", "mean", ("first", 2)]))
    def lookup_pooled(self, ids: np.ndarray, seed: int, mode: Any) -> None:
        offsets = offsets_for(seed, len(ids))
        ours = self.native.lookup_pooled(ids, offsets, mode=mode)
        theirs = self.model.lookup_pooled(ids, offsets, mode=mode)
        # The engine may add the rows of a bag in another order.
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)

    @rule()
    def drain_touched(self) -> None:
        self.both("drain_touched")

    @rule(shards=st.integers(1, 9))
    def save_and_load(self, shards: int) -> None:
        self.native.save(self.folder / "t", shards=shards)
        self.native = Table.load(self.folder / "t")
        self.native.force_expiry = True
        assert self.native.spec == self.spec
        model = ReferenceTable(self.spec)
        model.restore_state(self.model.snapshot_state())
        self.model = model

    # --- invariants ---

    @invariant()
    def tables_are_equal(self) -> None:
        if not hasattr(self, "native"):
            return
        assert len(self.native) == len(self.model)
        assert self.native.max_time_s == self.model.max_time_s
        assert self.native.stats.nan_rows_skipped == self.model.stats.nan_rows_skipped
        stored = np.concatenate([np.zeros(0, np.int64), *(ids for ids, _ in self.model.items())])
        # The plain model reads a row in 0.1 ms, so only some rows of a large table are compared.
        present = np.concatenate([np.array(POOL), stored[:: 1 + len(stored) // CHECKED_ROWS]])
        ours, ours_found = self.native.lookup(present, return_found=True)
        theirs, theirs_found = self.model.lookup(present, return_found=True)
        assert np.array_equal(ours_found, theirs_found)
        assert np.array_equal(ours, theirs, equal_nan=True)
        listed = {fid for ids, _ in self.native.items(batch_size=1000) for fid in ids.tolist()}
        assert len(listed) == len(self.model)
        assert listed == {fid for ids, _ in self.model.items() for fid in ids.tolist()}

    @invariant()
    def entries_are_equal(self) -> None:
        if not hasattr(self, "native"):
            return
        for fid in POOL:
            ours, theirs = self.native.entry(fid), self.model.entry(fid)
            assert (ours is None) == (theirs is None)
            if theirs is None:
                continue
            assert ours.time_s == theirs.time_s
            assert np.array_equal(ours.values, theirs.values, equal_nan=True)
            for our_state, their_state in zip(ours.state, theirs.state, strict=True):
                assert sorted(our_state) == sorted(their_state)
                for name, numbers_of_field in their_state.items():
                    assert np.array_equal(our_state[name], numbers_of_field, equal_nan=True), name


TestTableAgainstModel = TableMachine.TestCase
TestTableAgainstModel.settings = settings(
    # A sanitizer makes each example five to ten times as slow.
    max_examples=5 if "MONOLITH_SANITIZED" in os.environ else 40,
    stateful_step_count=25,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
