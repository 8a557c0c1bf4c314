"""Steps by ``MultiTable.pull_planned`` leave the same bits as ``pull`` and ``push``; so do changes in between."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from monolith import _native
from monolith.core.errors import ConfigError, DimensionMismatch
from monolith.embedding import Adagrad, MultiTable, RandomUniform, SliceSpec, SlidingHashFilter, TableSpec, set_threads

DIMS = {"a": 4, "b": 17, "c": 3}
TABLES = list(DIMS)
DAY_S = 86400
LAYOUTS = _native.Layouts(
    list(DIMS.values()),
    [(number, "sum", 0) for number in range(3)],
    [(number, number, 0, dim, 0, 0) for number, dim in enumerate(DIMS.values())],
    list(DIMS.values()),
)


def make_store() -> MultiTable:
    """Return a plain table, one that asks a filter, and one that shows first values and expires soon."""

    def slices(dim: int) -> list[SliceSpec]:
        return [SliceSpec(dim, optimizer=Adagrad(0.1), initializer=RandomUniform(-1.0, 1.0))]

    return MultiTable(
        [
            TableSpec("a", slices(4)),
            TableSpec("b", slices(17), admission=SlidingHashFilter(3000), occurrence_threshold=1, deterministic=True),
            TableSpec("c", slices(3), on_miss="initial", expire_days=2),
        ],
        force_expiry=True,
    )


def draw_plan(random: np.random.Generator, examples: int) -> _native.StepPlan:
    bounds = [np.sort(random.integers(0, 4 * examples, examples + 1)) for _ in TABLES]
    for each in bounds:
        each[0], each[-1] = 0, 4 * examples
    ids = [random.integers(0, 3000, 4 * examples) ** 2 for _ in TABLES]
    return LAYOUTS.plan(examples, ids, bounds, [False] * 3)


def delete_some(store: MultiTable, plan: _native.StepPlan) -> None:
    store.delete({name: plan.ids(number)[::3] for number, name in enumerate(TABLES)})


def grow(store: MultiTable, plan: _native.StepPlan) -> None:
    ids = np.arange(20_000) + 10**9
    for name, dim in DIMS.items():
        store[name].assign(ids, np.ones((len(ids), dim), np.float32))


def expire(store: MultiTable, plan: _native.StepPlan) -> None:
    store.evict(store["c"].max_time_s + 2 * DAY_S)


def clear(store: MultiTable, plan: _native.StepPlan) -> None:
    for name in TABLES:
        store[name].clear()


def train_elsewhere(store: MultiTable, plan: _native.StepPlan) -> None:
    ids = {name: plan.ids(number)[::2].copy() for number, name in enumerate(TABLES)}
    store.push(ids, {name: np.ones((len(keys), DIMS[name]), np.float32) for name, keys in ids.items()})


BETWEEN: list[Callable[[MultiTable, _native.StepPlan], None]] = [
    lambda store, plan: None,
    delete_some,
    grow,
    expire,
    clear,
    train_elsewhere,
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_planned_step_equals_a_pull_and_a_push(seed: int, threads: int) -> None:
    before = _native.threads()
    set_threads(threads)
    try:
        random = np.random.default_rng(seed)
        planned, plain = make_store(), make_store()
        for step in range(12):
            plan = draw_plan(random, [1, 60, 1500][step % 3])
            ids = {name: plan.ids(number) for number, name in enumerate(TABLES)}
            places, rows = planned.pull_planned(plan, TABLES), plain.pull(ids)
            for pulled, name in zip(places.rows, TABLES, strict=True):
                np.testing.assert_array_equal(pulled, rows[name])
            change = BETWEEN[int(random.integers(len(BETWEEN)))]
            change(planned, plan)
            change(plain, plan)
            grads = [random.standard_normal(each.shape).astype(np.float32) for each in places.rows]
            options = {"time_s": step * DAY_S // 2, "step": step}
            places.push(grads, **options)
            counts = {name: plan.counts(number) for number, name in enumerate(TABLES)}
            plain.push(ids, dict(zip(TABLES, grads, strict=True)), counts=counts, **options)
        for name in TABLES:
            for one, other in zip(planned[name].export_entries(), plain[name].export_entries(), strict=True):
                for left, right in zip(one, other, strict=True):
                    np.testing.assert_array_equal(left.view(np.uint32), right.view(np.uint32))
            assert planned[name].stats.ids_filtered == plain[name].stats.ids_filtered
            assert planned[name].max_time_s == plain[name].max_time_s
        assert len(planned["a"]) > 0
    finally:
        set_threads(before)


def test_pulls_ahead_of_pushes_keep_their_own_places() -> None:
    random = np.random.default_rng(5)
    planned, plain = make_store(), make_store()
    plans = [draw_plan(random, 300) for _ in range(6)]
    ahead = []
    for step, plan in enumerate([*plans, *plans]):
        ids = {name: plan.ids(number).copy() for number, name in enumerate(TABLES)}
        counts = {name: plan.counts(number).copy() for number, name in enumerate(TABLES)}
        ahead.append((planned.pull_planned(plan, TABLES), ids, counts))
        if len(ahead) == 3:
            places, ids, counts = ahead.pop(0)
            grads = [random.standard_normal(each.shape).astype(np.float32) for each in places.rows]
            places.push(grads, step=step)
            plain.push(ids, dict(zip(TABLES, grads, strict=True)), counts=counts, step=step)
    everything = np.arange(3000) ** 2
    for name in TABLES:
        np.testing.assert_array_equal(planned[name].lookup(everything), plain[name].lookup(everything))


def test_rows_are_pushed_once_and_in_their_shape() -> None:
    store = make_store()
    plan = draw_plan(np.random.default_rng(1), 20)
    places = store.pull_planned(plan, TABLES)
    with pytest.raises(DimensionMismatch, match="gradients have shape"):
        places.push([each[1:] for each in places.rows])
    with pytest.raises(DimensionMismatch, match="expected one for each of 3 tables"):
        places.push(places.rows[:2])
    assert len(store["a"]) == 0
    places.push(places.rows)
    rows = store["a"].lookup(plan.ids(0))
    with pytest.raises(ConfigError, match="one pull before each push"):
        places.push(places.rows)
    np.testing.assert_array_equal(store["a"].lookup(plan.ids(0)), rows)
    with pytest.raises(DimensionMismatch, match="expected 2; pull it from its own tables"):
        store.pull_planned(plan, TABLES[:2])


def test_rows_that_are_pushed_already_leave_those_of_the_next_step_alone() -> None:
    store, random = make_store(), np.random.default_rng(3)
    first, second = draw_plan(random, 8), draw_plan(random, 8)
    pushed = store.pull_planned(first, TABLES)
    pushed.push(pushed.rows)
    ids = second.ids(0)
    following = store.pull_planned(second, TABLES)
    before = store["a"].lookup(ids)
    with pytest.raises(ConfigError, match="one pull before each push"):
        pushed.push(following.rows)
    assert np.array_equal(store["a"].lookup(ids), before)
    following.push([np.ones_like(rows) for rows in following.rows])
    assert not np.array_equal(store["a"].lookup(ids), before)


@pytest.mark.parametrize(
    "wrong", [{"missing": [1]}, {"b": [0.5]}], ids=["a name without a table", "ids that are no integers"]
)
def test_a_refused_removal_removes_nothing(wrong: dict[str, list[float]]) -> None:
    store = make_store()
    store["a"].assign([1], np.ones((1, DIMS["a"]), np.float32))
    with pytest.raises(ConfigError):
        store.delete({"a": [1], **wrong})
    assert len(store["a"]) == 1
