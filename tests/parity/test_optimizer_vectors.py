"""The update rules against the golden vectors of spec/embedding_and_layers.md, 7.1 and section 2.

Upstream: monolith/native_training/runtime/hash_table/optimizer/*_test.cc of bytedance/monolith 135c491. Where the
original is known to be wrong (FTRL with l1, RMSProp's rate, Adam's restore) the corrected numbers are pinned.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolith.embedding import Table
from monolith.embedding.initializers import RandomUniform
from monolith.embedding.optimizers import (
    OPTIMIZERS,
    Adadelta,
    Adagrad,
    Adam,
    Amsgrad,
    BatchSoftmax,
    DelayCompensated,
    DynamicWdAdagrad,
    Ftrl,
    GroupAdagrad,
    GroupFtrl,
    Momentum,
    MovingAverage,
    Optimizer,
    RmsProp,
    RmsPropV2,
    Sgd,
    StochasticRoundingFp16,
)
from monolith.embedding.specs import SliceSpec, TableSpec
from monolith.testing import ReferenceTable

ID = np.array([42])


def one_slice(optimizer: Optimizer, dim: int = 1) -> TableSpec:
    return TableSpec("t", [SliceSpec(dim, optimizer=optimizer)])


def walk(make: Any, optimizer: Optimizer, rate: float | None, grads: list[Any]) -> tuple[Any, list[list[float]]]:
    """The table, and the weights after each gradient."""
    rows = [np.atleast_1d(np.array(grad, np.float32)) for grad in grads]
    table = make(one_slice(optimizer, len(rows[0])))
    weights = []
    for row in rows:
        table.apply_gradients(ID, row[None], learning_rates=None if rate is None else [rate])
        weights.append(table.lookup(ID)[0].tolist())
    return table, weights


VECTORS = [
    pytest.param(Sgd(), 0.1, [1], [[-0.1]], id="1 sgd"),
    pytest.param(Adagrad(initial_accumulator_value=1.0), 0.1, [(1, 2)], [[-0.07071067, -0.08944272]], id="3 adagrad"),
    pytest.param(
        Adagrad(initial_accumulator_value=1.0, weight_decay_factor=0.1),
        0.1,
        [(1, 2), (1, 2)],
        [[-0.07071067, -0.08944272], [-0.128173, -0.155943]],
        id="4 adagrad with decay",
    ),
    pytest.param(Adagrad(), 1.0, [1, 1], [[-0.95346254], [-1.643528]], id="5 adagrad twice"),
    pytest.param(Adadelta(), 0.01, [10, 10], [[-0.0031607], [-0.0064035]], id="7 adadelta 10"),
    pytest.param(Adadelta(), 0.01, [1, 1], [[-0.0030151], [-0.0061047]], id="7 adadelta 1"),
    pytest.param(Adam(), 0.01, [10, 10], [[-0.00990099], [-0.01983060]], id="8 adam 10"),
    pytest.param(Adam(), 0.01, [1, 1], [[-0.00909091], [-0.01842895]], id="8 adam 1"),
    pytest.param(Amsgrad(), 0.01, [10, 10], [[-0.00990099], [-0.01983060]], id="9 amsgrad 10"),
    pytest.param(Amsgrad(), 0.01, [1, 1], [[-0.00909091], [-0.01842895]], id="9 amsgrad 1"),
    pytest.param(Adam(use_nesterov=True), 0.01, [10, 10], [[-0.018811881], [-0.032974642]], id="10 adam nesterov"),
    pytest.param(Momentum(), 0.01, [10, 10], [[-0.1], [-0.29]], id="11 momentum 10"),
    pytest.param(Momentum(), 0.01, [1, 1], [[-0.01], [-0.029]], id="11 momentum 1"),
    pytest.param(Momentum(use_nesterov=True), 0.01, [10, 10], [[-0.19], [-0.461]], id="12 momentum nesterov"),
    pytest.param(MovingAverage(), 0.0, [10, 10], [[1.0], [1.9]], id="13 moving average 10"),
    pytest.param(MovingAverage(), 0.0, [1, 1], [[0.1], [0.19]], id="13 moving average 1"),
    pytest.param(RmsProp(), None, [10, 10], [[-0.024025], [-0.042686]], id="14 rmsprop"),
    pytest.param(RmsPropV2(), 0.01, [10, 10], [[-0.0090909], [-0.0158549]], id="15 rmspropv2 10"),
    pytest.param(RmsPropV2(), 0.01, [1, 1], [[-0.005], [-0.0092045]], id="15 rmspropv2 1"),
    pytest.param(Ftrl(), 0.01, [10, 10], [[-0.009995], [-0.0170643]], id="16 ftrl 10"),
    pytest.param(Ftrl(), 0.01, [1, 1], [[-0.00953463], [-0.0164353]], id="16 ftrl 1"),
    pytest.param(
        Ftrl(beta=1.0, l1_regularization_strength=0.5, l2_regularization_strength=0.1),
        0.1,
        [(1, -1)],
        [[-0.0242859, 0.0242859]],
        id="17 ftrl with l1, corrected",
    ),
    pytest.param(
        GroupAdagrad(beta=1.0, initial_accumulator_value=0.0, l2_regularization_strength=1.0),
        0.01,
        [10, 10],
        [[-0.008182], [-0.014125]],
        id="18 group adagrad",
    ),
    pytest.param(
        GroupAdagrad(beta=1.0, initial_accumulator_value=0.0, l2_regularization_strength=0.5),
        0.01,
        [(10, 1), (1, 5)],
        [[-0.008639, -0.000864], [-0.009096, -0.004778]],
        id="19 group adagrad of two",
    ),
    pytest.param(
        GroupAdagrad(beta=1.0, initial_accumulator_value=0.0),
        0.01,
        [(10, 1)],
        [[-0.009091, -0.000909]],
        id="20 group adagrad without l2",
    ),
    pytest.param(
        GroupAdagrad(beta=1.0, initial_accumulator_value=0.0, l2_regularization_strength=1000.0),
        0.01,
        [(10, 1)],
        [[0.0, 0.0]],
        id="20 group adagrad with strong l2",
    ),
]


@pytest.mark.parametrize(("optimizer", "rate", "grads", "expected"), VECTORS)
def test_weights_after_each_step(make: Any, optimizer: Optimizer, rate: float, grads: Any, expected: Any) -> None:
    _, weights = walk(make, optimizer, rate, grads)
    # The vectors are printed with 5 to 8 digits, those of group adagrad with 6 decimals.
    half_digit = 5e-7 if isinstance(optimizer, GroupAdagrad) else 1e-7
    assert np.array(weights) == pytest.approx(np.array(expected), rel=3e-5, abs=half_digit)


def test_vector_2_each_slice_of_sgd_has_its_own_rate(make: Any) -> None:
    table = make(TableSpec("t", [SliceSpec(1, optimizer=Sgd()), SliceSpec(2, optimizer=Sgd())]))
    table.apply_gradients(ID, np.array([[1, 2, 3]], np.float32), learning_rates=[1.0, 2.0])
    assert table.lookup(ID).tolist() == [[-1, -4, -6]]


def test_vector_6_each_slice_of_adagrad_has_its_own_rate_and_accumulator(make: Any) -> None:
    slices = [SliceSpec(dim, optimizer=Adagrad(initial_accumulator_value=float(dim))) for dim in (1, 2)]
    table = make(TableSpec("t", slices))
    grads = np.array([[1, 2, 3]], np.float32)
    table.apply_gradients(ID, grads, learning_rates=[1.0, 2.0])
    assert table.lookup(ID)[0] == pytest.approx(np.array([-0.70710677, -1.6329931, -1.8090681]), rel=1e-6)
    table.assign(ID, np.zeros((1, 3), np.float32))
    table.apply_gradients(ID, grads, learning_rates=[1.0, 2.0])
    assert table.lookup(ID)[0] == pytest.approx(np.array([-0.57735026, -1.264911, -1.3416407]), rel=1e-6)


def test_vector_21_batch_softmax_follows_the_gaps_between_steps(make: Any) -> None:
    table = make(one_slice(BatchSoftmax()))
    weights = []
    for step in (1, 3, 10):
        table.apply_gradients(ID, np.array([[123]], np.float32), learning_rates=[0.1], step=step)
        weights.append(float(table.lookup(ID)[0, 0]))
    assert weights == pytest.approx([0.1, 0.29, 0.961], rel=1e-6)


@pytest.mark.parametrize(("gap", "expected"), [(5, 0.2), (10, 0.1)])
def test_batch_softmax_finds_the_frequency_of_an_id(make: Any, gap: int, expected: float) -> None:
    table = make(one_slice(BatchSoftmax(0.1)))
    for step in range(gap, 1001, gap):
        table.apply_gradients(ID, np.zeros((1, 1), np.float32), step=step)
    assert 1 / table.lookup(ID)[0, 0] == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    ("grad", "expected", "accum"),
    [(10.0, [-0.0031603, -0.0065548], 8.1), (1.0, [-0.00301233, -0.00611400], 0.09801)],
    ids=["10", "1"],
)
def test_vector_22_delay_compensation_over_adadelta(
    make: Any, grad: float, expected: list[float], accum: float
) -> None:
    table = make(one_slice(DelayCompensated(Adadelta(), 0.1)))
    weights = []
    for position, latest in enumerate((0.1, 0.0)):
        then = np.array([[latest]], np.float32)
        grads = np.array([[grad]], np.float32)
        table.apply_gradients(ID, grads, learning_rates=[0.01], values_at_gradient=then)
        weights.append(float(table.lookup(ID)[0, 0]))
        if position == 0:
            assert table.entry(42).state[0]["accum"][0] == pytest.approx(accum, rel=1e-5)
    assert weights == pytest.approx(expected, rel=3e-5)


@pytest.mark.parametrize(
    ("optimizer", "grad", "field", "expected"),
    [
        (Adadelta(), 10, "accum", 10),
        (Adadelta(), 1, "accum", 0.1),
        (Adam(), 10, "m", 1),
        (Adam(), 1, "m", 0.1),
        (Momentum(), 10, "n", -0.1),
        (Momentum(), 1, "n", -0.01),
        (RmsProp(), 10, "n", 10),
        (RmsPropV2(), 10, "n", 100),
        (RmsPropV2(), 1, "n", 1),
        (Ftrl(), 10, "norm", 100.1),
        (Ftrl(), 1, "norm", 1.1),
    ],
)
def test_state_after_one_step(make: Any, optimizer: Optimizer, grad: float, field: str, expected: float) -> None:
    table, _ = walk(make, optimizer, 0.01, [grad])
    assert table.entry(42).state[0][field][0] == pytest.approx(expected, rel=1e-6)


def test_rmsprop_uses_the_rate_of_the_call(make: Any) -> None:
    _, slow = walk(make, RmsProp(learning_rate=123.0), 0.01, [10])
    assert slow[0][0] == pytest.approx(-0.024025, rel=3e-5)


def test_group_ftrl_shrinks_a_slice_as_a_whole(make: Any) -> None:
    # w = 0, so z = g = (3, 4), |z| = 5, n = (9, 16): w_i = 0.1 * z_i * (1 - 5)/5 / (1 + sqrt(n_i) + 0.5 * 0.1).
    optimizer = GroupFtrl(l1_regularization_strength=1.0, l2_regularization_strength=0.5)
    _, weights = walk(make, optimizer, 0.1, [(3, 4)])
    assert weights[0] == pytest.approx([-0.24 / 4.05, -0.32 / 5.05], rel=1e-6)
    _, weights = walk(make, GroupFtrl(l1_regularization_strength=6.0), 0.1, [(3, 4)])
    assert weights[0] == [0, 0]


@pytest.mark.parametrize("optimizer", [Ftrl(), GroupFtrl()])
def test_a_rate_of_zero_at_the_start_of_a_warm_up_moves_nothing(make: Any, optimizer: Optimizer) -> None:
    _, weights = walk(make, optimizer, 0.0, [(3, 4)])
    assert weights == [[0, 0]]


# wd 0.5, temperature 2, rate 1, n0 0, w 1, g 1, row idle for 4 steps: kept = exp(-2).
DYNAMIC = DynamicWdAdagrad(initial_accumulator_value=0.0, weight_decay_factor=0.5, dynamic_wd_temperature=2.0)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"decouple_weight_decay": True, "enable_dynamic_wd": False}, 1 - 1 - 0.5),
        ({"decouple_weight_decay": True, "flip_direction": False}, 1 - 1 - 0.5 * (1 - np.exp(-2))),
        ({"decouple_weight_decay": True, "flip_direction": True}, 1 - 1 - 0.5 * np.exp(-2)),
        ({"decouple_weight_decay": False, "enable_dynamic_wd": False}, 1 - 1.5 / np.sqrt(1.5**2)),
    ],
    ids=["decoupled", "decoupled grows with idle steps", "flipped", "coupled"],
)
def test_dynamic_weight_decay(make: Any, settings: dict[str, bool], expected: float) -> None:
    table = make(one_slice(replace(DYNAMIC, **settings)))
    table.assign(ID, np.ones((1, 1), np.float32))
    table.apply_gradients(ID, np.ones((1, 1), np.float32), learning_rates=[1.0], step=4)
    assert table.lookup(ID)[0, 0] == pytest.approx(expected, rel=1e-6, abs=1e-7)
    assert table.entry(42).state[0]["last_update_step"].tolist() == [4]


def test_coupled_dynamic_decay_goes_through_the_accumulator(make: Any) -> None:
    table = make(one_slice(replace(DYNAMIC, decouple_weight_decay=False, flip_direction=False)))
    table.assign(ID, np.ones((1, 1), np.float32))
    table.apply_gradients(ID, np.ones((1, 1), np.float32), learning_rates=[1.0], step=4)
    slope = 1 + 0.5 * (1 - np.exp(-2))
    assert table.entry(42).state[0]["norm"][0] == pytest.approx(slope**2, rel=1e-6)


def stepping_optimizers() -> list[Optimizer]:
    """Every kind with a separate rule."""
    return [cls() for kind, cls in OPTIMIZERS.items() if kind not in ("dc", "stochastic_rounding_float16")]


@pytest.mark.parametrize("optimizer", stepping_optimizers(), ids=lambda optimizer: optimizer.kind)
def test_a_restored_row_takes_the_same_next_step(make: Any, tmp_path: Path, optimizer: Optimizer) -> None:
    dim = 1 if optimizer.kind == "batch_softmax" else 5
    table = make(one_slice(optimizer, dim))
    rng = np.random.default_rng(7)
    ids = np.arange(20)
    for step in range(1, 4):
        table.apply_gradients(ids, rng.normal(size=(20, dim)).astype(np.float32), step=step)
    copy = make(table.spec)
    if isinstance(table, ReferenceTable):
        copy.restore_state(table.snapshot_state())
    else:
        table.save(tmp_path / "t")
        copy.restore(tmp_path / "t")
    grads = rng.normal(size=(20, dim)).astype(np.float32)
    for each in (table, copy):
        each.apply_gradients(ids, grads, step=9)
    assert np.array_equal(table.lookup(ids), copy.lookup(ids))


@pytest.mark.parametrize(
    ("optimizer", "dim"),
    [
        pytest.param(optimizer, dim, id=f"{optimizer.kind}-{dim}")
        for optimizer in stepping_optimizers()
        for dim in ([1] if optimizer.kind == "batch_softmax" else [1, 3, 8, 17])
    ],
)
def test_the_engine_and_the_plain_model_agree_to_the_last_bit(optimizer: Optimizer, dim: int) -> None:
    spec = TableSpec(
        "t", [SliceSpec(dim, optimizer=optimizer, initializer=RandomUniform(), learning_rate=0.05)], seed=3
    )
    native, model = Table(spec), ReferenceTable(spec)
    rng = np.random.default_rng(dim)
    for step in range(1, 6):
        ids = rng.integers(-20, 20, 50)
        grads = rng.normal(size=(50, dim)).astype(np.float32)
        native.apply_gradients(ids, grads, step=step)
        model.apply_gradients(ids, grads, step=step)
    ids = np.arange(-20, 20)
    assert np.array_equal(native.lookup(ids), model.lookup(ids))
    for fid in ids.tolist():
        ours, theirs = native.entry(fid), model.entry(fid)
        if theirs is None:
            continue
        for name, numbers in theirs.state[0].items():
            assert np.array_equal(ours.state[0][name], numbers), name


@pytest.fixture
def rounded() -> Any:
    return Table(one_slice(StochasticRoundingFp16(Sgd()), 4096))


def test_stochastic_rounding_leaves_fp16_values_that_are_right_on_average(rounded: Any) -> None:
    # 1/8 of the way between two neighbouring halves: 1 + 2^-10 * (k + 1/8).
    exact = np.float32(1 + 2**-10 / 8)
    rounded.apply_gradients(ID, np.full((1, 4096), -exact), learning_rates=[1.0])
    weights = rounded.lookup(ID)[0]
    assert set(weights.tolist()) == {1.0, 1 + 2**-10}
    assert (weights > 1).mean() == pytest.approx(1 / 8, abs=0.02)


def test_stochastic_rounding_keeps_values_that_fp16_can_hold(rounded: Any) -> None:
    values = np.linspace(-2, 2, 4096).astype(np.float16).astype(np.float32)
    rounded.apply_gradients(ID, -values[None], learning_rates=[1.0])
    assert np.array_equal(rounded.lookup(ID)[0], values)
