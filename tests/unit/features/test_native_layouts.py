"""The native plan, its pooling and its gradient, against the slow model and at their edges."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith import _native
from monolith.core.errors import ConfigError, DimensionMismatch
from monolith.embedding import set_threads
from monolith.testing.reference.layouts import FeatureTuple, PartTuple, ReferenceLayouts


@dataclass(frozen=True)
class Case:
    """A configuration, and the ids of one batch for it."""

    dims: list[int]
    features: list[FeatureTuple]
    parts: list[PartTuple]
    widths: list[int]
    rows: int
    bags: list[list[list[int]]]
    shared: list[bool]

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self.dims, self.features, self.parts, self.widths

    @property
    def ids(self) -> tuple[Any, ...]:
        values = [np.array([fid for bag in bags for fid in bag], np.int64) for bags in self.bags]
        offsets = [np.cumsum([0, *map(len, bags)]) for bags in self.bags]
        return self.rows, values, offsets, self.shared


@st.composite
def cases(draw: st.DrawFn) -> Case:
    dims = draw(st.lists(st.sampled_from([1, 2, 3, 8, 17, 33, 50]), min_size=1, max_size=3))
    pooling = st.sampled_from([("sum", 0), ("mean", 0), ("first", 1), ("first", 2), ("first", 3)])
    tables = st.integers(0, len(dims) - 1)
    features = [(table, *how) for table, how in draw(st.lists(st.tuples(tables, pooling), min_size=1, max_size=5))]
    widths = draw(st.lists(st.integers(1, 120), min_size=1, max_size=3))
    parts = []
    for _ in range(draw(st.integers(0, 8))):
        feature, output = draw(st.integers(0, len(features) - 1)), draw(st.integers(0, len(widths) - 1))
        table, _, n = features[feature]
        column = draw(st.integers(0, dims[table] - 1))
        width = draw(st.integers(1, dims[table] - column))
        stride = width + draw(st.integers(0, 2)) if n else 0
        left = widths[output] - (max(n, 1) - 1) * stride - width
        if left >= 0:
            parts.append((output, feature, column, width, draw(st.integers(0, left)), stride))
    rows = draw(st.integers(0, 6))
    shared = draw(st.lists(st.booleans(), min_size=len(features), max_size=len(features)))
    fids = st.integers(-3, 12) | st.sampled_from([-(2**63), 2**63 - 1])
    bags = [
        draw(st.lists(draw(st.sampled_from([st.lists(fids, max_size=4), st.lists(fids, min_size=1, max_size=1)])),
                      min_size=count, max_size=count))
        for count in (1 if is_shared else rows for is_shared in shared)
    ]  # fmt: skip
    return Case(dims, features, parts, widths, rows, bags, shared)


def empty(shapes: list[tuple[int, int]]) -> list[np.ndarray]:
    return [np.full(shape, np.nan, np.float32) for shape in shapes]


@given(cases(), st.integers(0, 2**32 - 1))
def test_native_and_slow_layouts_agree(case: Case, seed: int) -> None:
    native = _native.Layouts(*case.arguments).plan(*case.ids)
    slow = ReferenceLayouts(*case.arguments).plan(*case.ids)
    assert (native.rows, native.occurrences) == (slow.rows, slow.occurrences)
    for table in range(len(case.dims)):
        assert native.ids(table).tolist() == slow.ids(table).tolist()
        assert native.counts(table).tolist() == slow.counts(table).tolist()

    rng = np.random.default_rng(seed)
    rows = [
        rng.standard_normal((len(native.ids(table)), dim)).astype(np.float32) for table, dim in enumerate(case.dims)
    ]
    outputs = empty([(case.rows, width) for width in case.widths])
    expected = empty([(case.rows, width) for width in case.widths])
    native.pool(rows, outputs)
    slow.pool(rows, expected)
    for output, wanted in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-5)

    grads = [
        None if rng.random() < 0.2 else rng.standard_normal((case.rows, width)).astype(np.float32)
        for width in case.widths
    ]
    row_grads, wanted_grads = empty([r.shape for r in rows]), empty([r.shape for r in rows])
    squares = native.scatter(grads, row_grads)
    wanted_squares = slow.scatter(grads, wanted_grads)
    for grad, wanted in zip(row_grads, wanted_grads, strict=True):
        np.testing.assert_allclose(grad, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(squares, wanted_squares, rtol=1e-5, atol=1e-5)


@pytest.fixture
def restored_threads() -> Any:
    before = _native.threads()
    yield
    set_threads(before)


def large_case(seed: int) -> Case:
    """Two tables, one with many more rows than fit one piece of work; all poolings; a shared feature."""
    rng = np.random.default_rng(seed)
    rows = 3000

    def bags(count: int, most: int) -> list[list[int]]:
        return [(rng.zipf(1.2, size) % 50_000).tolist() for size in rng.integers(0, most + 1, count)]

    features = [(0, "sum", 0), (0, "mean", 0), (0, "first", 3), (1, "sum", 0), (0, "sum", 0)]
    parts = [
        (0, 0, 0, 33, 0, 0),
        (0, 1, 0, 33, 0, 0),
        (1, 2, 1, 32, 0, 33),
        (2, 3, 0, 1, 0, 0),
        (2, 4, 2, 16, 1, 0),
    ]
    shared = [False, False, False, False, True]
    return Case(
        [33, 1],
        features,
        parts,
        [33, 99, 17],
        rows,
        [bags(1 if is_shared else rows, 6) for is_shared in shared],
        shared,
    )


def test_the_number_of_threads_changes_no_bit(seed: int, restored_threads: Any) -> None:
    case = large_case(seed)
    layouts = _native.Layouts(*case.arguments)
    rng = np.random.default_rng(seed)
    results: list[list[Any]] = []
    for threads in (1, 2, 3, 7):
        set_threads(threads)
        plan = layouts.plan(*case.ids)
        if not results:
            rows = [
                rng.standard_normal((len(plan.ids(table)), dim)).astype(np.float32)
                for table, dim in enumerate(case.dims)
            ]
            grads = [rng.standard_normal((case.rows, width)).astype(np.float32) for width in case.widths]
        outputs, row_grads = empty([(case.rows, width) for width in case.widths]), empty([r.shape for r in rows])
        plan.pool(rows, outputs)
        squares = plan.scatter(grads, row_grads)
        ids = [array.tobytes() for table in range(2) for array in (plan.ids(table), plan.counts(table))]
        results.append([ids, [array.tobytes() for array in outputs + row_grads], squares])
    assert all(result == results[0] for result in results)

    slow = ReferenceLayouts(*case.arguments).plan(*case.ids)
    expected = empty([r.shape for r in rows])
    np.testing.assert_allclose(squares, slow.scatter(grads, expected), rtol=1e-4)
    for grad, wanted in zip(row_grads, expected, strict=True):
        np.testing.assert_allclose(grad, wanted, rtol=1e-3, atol=1e-3)


def simple() -> _native.Layouts:
    return _native.Layouts([2], [(0, "sum", 0)], [(0, 0, 0, 2, 0, 0)], [2])


def test_a_plan_keeps_its_ids_when_their_arrays_are_gone() -> None:
    values = np.array([7, 8, 7], np.int64)
    ids = simple().plan(2, [values], [np.array([0, 1, 3])], [False]).ids(0)
    values[:] = 0
    gc.collect()
    assert ids.tolist() == [7, 8]
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 1


@pytest.mark.skipif(
    "address" in os.environ.get("MONOLITH_SANITIZED", ""), reason="buffers are not pooled under the address sanitizer"
)
def test_plans_reuse_the_memory_of_freed_plans() -> None:
    layouts = simple()
    layouts.plan(100_000, [np.arange(100_000)], [np.arange(100_001)], [False])
    held = _native.pooled_bytes()
    plan = layouts.plan(100_000, [np.arange(100_000)], [np.arange(100_001)], [False])
    assert _native.pooled_bytes() < held
    del plan
    assert _native.pooled_bytes() == held


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0], [], [], []), "table 0 has dim 0"),
        (([2], [(1, "sum", 0)], [], []), "feature 0 uses table 1, and there are 1 tables"),
        (([2], [(0, "max", 0)], [], []), "feature 0 has pooling 'max'; use sum, mean or first"),
        (([2], [(0, "first", 0)], [], []), "feature 0 has n = 0"),
        (([2], [(0, "sum", 3)], [], []), "feature 0 has n = 3"),
        (([2], [(0, "sum", 0)], [(0, 0, 0, 1, 0, 0)], [0]), "output 0 has width 0"),
        (([2], [(0, "sum", 0)], [(1, 0, 0, 1, 0, 0)], [1]), "part 0 writes output 1, and there are 1"),
        (([2], [(0, "sum", 0)], [(0, 2, 0, 1, 0, 0)], [1]), "part 0 uses feature 2, and there are 1"),
        (([2], [(0, "sum", 0)], [(0, 0, 0, 0, 0, 0)], [1]), "part 0 has width 0"),
        (([2], [(0, "sum", 0)], [(0, 0, 1, 2, 0, 0)], [4]), "part 0 reads columns 1 to 3 of feature 0"),
        (([2], [(0, "sum", 0)], [(0, 0, 0, 2, 1, 0)], [2]), "part 0 writes floats 1 to 3 of output 0, which has 2"),
        (([2], [(0, "first", 2)], [(0, 0, 0, 2, 0, 1)], [4]), "part 0 has stride 1, less than its width 2"),
        (([2], [(0, "first", 2)], [(0, 0, 0, 2, 0, 3)], [4]), "part 0 writes floats 0 to 5 of output 0"),
    ],
)
def test_layouts_that_cannot_work_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        _native.Layouts(*arguments)


@pytest.mark.parametrize(
    ("values", "offsets", "shared", "message"),
    [
        ([[1]], [[0, 1]], [False], "feature 0 has 2 offsets; a batch of 2 has 3"),
        ([[1]], [[0, 1, 1]], [True], "feature 0 has 3 offsets; a shared feature has 2"),
        ([[1]], [[0, 1, 2]], [False], "feature 0 has offsets from 0 to 2; they must go from 0 to its 1 ids"),
        ([[1, 2]], [[1, 1, 2]], [False], "feature 0 has offsets from 1 to 2"),
        ([[1]], [[0, 2, 1]], [False], "feature 0 has offsets that fall"),
        ([[1], [1]], [[0, 1, 1]], [False], "values of 2 features, offsets of 1 and shared flags of 1"),
        ([], [], [], "ids of 0 features, and the layouts have 1"),
        ([None], [[0, 0, 0]], [False], "feature 0 has no ids"),
        ([[0.5]], [[0, 1, 1]], [False], "the ids of feature 0 is not a C-contiguous array of int64"),
    ],
)
def test_ids_that_do_not_fit_are_refused(values: Any, offsets: Any, shared: list[bool], message: str) -> None:
    arrays = [[None if part is None else np.array(part) for part in parts] for parts in (values, offsets)]
    with pytest.raises(DimensionMismatch, match=message):
        simple().plan(2, *arrays, shared)


def test_arrays_that_do_not_fit_are_refused() -> None:
    plan = simple().plan(2, [np.array([1, 2])], [np.array([0, 1, 2])], [False])
    rows, out = np.zeros((2, 2), np.float32), np.zeros((2, 2), np.float32)
    for bad, message in [
        (([], [out]), "arrays for 0 tables, and the plan has 1"),
        (([rows], []), "arrays for 0 outputs, and the plan has 1"),
        (([rows[:1]], [out]), r"table 0 has an array of shape \(1, 2\); this plan needs \(2, 2\)"),
        (([rows], [out[:1]]), r"output 0 has an array of shape \(1, 2\); this plan needs \(2, 2\)"),
        (([rows], [None]), r"output 0 has an array of shape \(0, 0\)"),
        (([rows], [out.astype(np.float64)]), "output 0 is not a C-contiguous array of writable float32"),
        (([rows], [out.T[::-1]]), "output 0 is not a C-contiguous array"),
        (([None], [out]), r"table 0 has an array of shape \(0, 0\)"),
    ]:
        with pytest.raises(DimensionMismatch, match=message):
            plan.pool(*bad)
    with pytest.raises(DimensionMismatch, match=r"the gradient of output 0 is not .* float32"):
        plan.scatter([out.astype(np.float64)], [rows])
    with pytest.raises(DimensionMismatch, match=r"output 0 has an array of shape \(2, 1\)"):
        plan.scatter([np.zeros((2, 1), np.float32)], [rows])
    read_only = rows.copy()
    read_only.flags.writeable = False
    plan.pool([read_only], [out])
    with pytest.raises(DimensionMismatch, match=r"the gradient of table 0 is not .* writable"):
        plan.scatter([out], [read_only])
    with pytest.raises(IndexError, match="table 1 of 1"):
        plan.ids(1)


def test_an_empty_batch_has_an_empty_plan() -> None:
    plan = simple().plan(0, [np.zeros(0, np.int64)], [np.zeros(1, np.int64)], [False])
    assert plan.ids(0).tolist() == []
    plan.pool([np.zeros((0, 2), np.float32)], [np.zeros((0, 2), np.float32)])
    assert plan.scatter([None], [np.zeros((0, 2), np.float32)]) == [0.0]


def test_more_ids_than_the_last_batch_had_are_numbered_too() -> None:
    layouts = simple()
    for count in (10, 5000, 3, 100_000):
        ids = np.random.default_rng(count).permutation(count)
        plan = layouts.plan(1, [np.concatenate([ids, ids[::-1]])], [np.array([0, 2 * count])], [False])
        np.testing.assert_array_equal(plan.ids(0), ids)
        assert set(plan.counts(0).tolist()) == {2}
