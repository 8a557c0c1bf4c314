"""Steps with a plan through ``Table``; ``row_plan_test.cc`` compares their bits in every setting of the engine."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from monolith.core.errors import ConfigError, DimensionMismatch
from monolith.embedding import Adagrad, RandomUniform, RowPlan, SliceSpec, Table, TableSpec
from monolith.embedding.arguments import Mode

MODES: list[Mode] = ["sum", "mean", ("first", 2)]


def make_table() -> Table:
    slices = [SliceSpec(3, optimizer=Adagrad(0.1), initializer=RandomUniform(-1.0, 1.0))]
    return Table(TableSpec("t", slices, on_miss="initial"))


@pytest.mark.parametrize("mode", MODES)
def test_a_planned_step_equals_a_plain_step(mode: Mode) -> None:
    random = np.random.default_rng(1)
    planned, plain, plan = make_table(), make_table(), RowPlan()
    for step in range(3):
        ids = random.integers(0, 400, 3000)
        offsets = np.concatenate([[0], np.sort(random.integers(0, len(ids), 500)), [len(ids)]])
        rows = planned.lookup_pooled(ids, offsets, mode, plan=plan)
        np.testing.assert_array_equal(rows, plain.lookup_pooled(ids, offsets, mode))
        grads = random.standard_normal(rows.shape).astype(np.float32)
        planned.delete(ids[:50])
        plain.delete(ids[:50])
        planned.apply_planned_gradients(plan, grads, step=step, time_s=step)
        plain.apply_pooled_gradients(ids, offsets, grads, mode, step=step, time_s=step)
    everything = np.arange(400)
    np.testing.assert_array_equal(planned.lookup(everything), plain.lookup(everything))
    assert plan.memory_bytes > 0


def test_an_update_refuses_the_plan_of_another_table() -> None:
    table, other, plan = make_table(), make_table(), RowPlan()
    with pytest.raises(ConfigError, match="the plan is empty"):
        table.apply_planned_gradients(plan, np.zeros((0, 3)))
    assert not plan.is_filled
    table.lookup_pooled([1, 2], [0, 2], plan=plan)
    assert plan.is_filled
    with pytest.raises(ConfigError, match="of another table"):
        other.apply_planned_gradients(plan, np.zeros((1, 3)))
    assert len(other) == 0
    del table
    with pytest.raises(ConfigError, match="of another table"):
        make_table().apply_planned_gradients(plan, np.zeros((1, 3)))


def test_an_update_refuses_gradients_of_another_shape() -> None:
    table, plan = make_table(), RowPlan()
    table.lookup_pooled([1, 2, 3], [0, 2, 3], plan=plan)
    with pytest.raises(DimensionMismatch):
        table.apply_planned_gradients(plan, np.zeros((3, 3)))
    table.lookup_pooled([1, 2, 3], [0, 2, 3], ("first", 2), plan=plan)
    with pytest.raises(DimensionMismatch):
        table.apply_planned_gradients(plan, np.zeros((4, 3)))
    assert len(table) == 0


def test_threads_with_their_own_plans_lose_no_update() -> None:
    table = make_table()
    ids, offsets = np.arange(2000) % 1500, np.arange(0, 2001, 4)
    errors: list[BaseException] = []

    def train() -> None:
        plan = RowPlan()
        try:
            for _ in range(10):
                rows = table.lookup_pooled(ids, offsets, plan=plan)
                table.apply_planned_gradients(plan, np.ones_like(rows))
        except BaseException as error:  # shown by the assertion below
            errors.append(error)

    threads = [threading.Thread(target=train) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    entries = [table.entry(fid) for fid in (0, 1499)]
    squares = [entry.state[0]["norm"][0] for entry in entries if entry is not None]
    # 30 steps, each with the sum of an id's gradients: id 0 occurs twice in a batch.
    np.testing.assert_allclose(squares, [0.1 + 30 * 4, 0.1 + 30 * 1], rtol=1e-4)
