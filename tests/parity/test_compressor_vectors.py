"""Initializers, compressors and schedules against spec/embedding_and_layers.md, 3.1-3.3 and 7.4.

Upstream: runtime/hash_table/{initializer,compressor,retriever}/*_test.cc and learning_rate_functions_test.py of
bytedance/monolith 135c491. OneBit is packed to one bit where the original's test form takes a byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from monolith.embedding import Table
from monolith.embedding.compressors import Compressor, FixedR8, Fp16, Fp32, OneBit
from monolith.embedding.initializers import Constant, Ones, RandomUniform, Zeros
from monolith.embedding.learning_rates import PolynomialDecay
from monolith.embedding.optimizers import Adagrad, MovingAverage, Sgd
from monolith.embedding.specs import SliceSpec, TableSpec
from monolith.testing.reference.values import initial_values, scramble, table_seed

ID = np.array([3])


def spec(compressor: Compressor, dim: int = 1) -> TableSpec:
    return TableSpec("t", [SliceSpec(dim, optimizer=Sgd(1.0), compressor=compressor)])


def trained_read(make: Any, compressor: Compressor, values: list[float]) -> np.ndarray:
    table = make(spec(compressor, len(values)))
    table.assign(ID, np.array([values], np.float32))
    return table.lookup(ID)[0]


def served(compressor: Compressor, values: list[float]) -> np.ndarray:
    table = Table(spec(compressor, len(values)))
    table.assign(ID, np.array([values], np.float32))
    return table.to_serving().lookup(ID)[0]


# --- 3.1 initializers -------------------------------------------------------------------------------------------------


def test_each_slice_has_its_own_first_values(make: Any) -> None:
    slices = [SliceSpec(dim, optimizer=Sgd(), initializer=Constant(value)) for dim, value in ((1, 3.0), (2, 4.0))]
    slices += [SliceSpec(1, optimizer=Sgd(), initializer=Ones()), SliceSpec(1, optimizer=Sgd(), initializer=Zeros())]
    table = make(TableSpec("t", slices))
    table.reinitialize(ID)
    assert table.lookup(ID).tolist() == [[3, 4, 4, 1, 0]]


def test_uniform_first_values_fill_their_range_evenly(make: Any) -> None:
    table = make(TableSpec("t", [SliceSpec(4, optimizer=Sgd(), initializer=RandomUniform(-0.5, 1.5))]))
    ids = np.arange(2000)
    table.reinitialize(ids)
    rows = table.lookup(ids)
    assert rows.min() >= -0.5
    assert rows.max() < 1.5
    assert rows.mean() == pytest.approx(0.5, abs=0.03)
    assert np.histogram(rows, bins=8, range=(-0.5, 1.5))[0] == pytest.approx(np.full(8, 1000), rel=0.15)


def test_first_values_depend_on_seed_table_slice_and_id_and_on_nothing_else() -> None:
    def values(name: str = "t", seed: int = 0, fid: int = 1) -> list[float]:
        slices = [SliceSpec(3, optimizer=Sgd(), initializer=RandomUniform()) for _ in range(2)]
        return initial_values(TableSpec(name, slices, seed=seed), fid).tolist()

    same = values()
    assert same == values()
    assert same[:3] != same[3:]
    for other in (values(name="u"), values(seed=1), values(fid=2)):
        assert not set(same) & set(other)


def test_the_engine_draws_the_same_first_values_bit_for_bit() -> None:
    for dim in (1, 2, 7, 64):
        slices = [SliceSpec(dim, optimizer=Sgd(), initializer=RandomUniform(-0.3, 0.1 * k)) for k in (1, 2)]
        one = TableSpec("Ünïcode", slices, seed=2**64 - 1, on_miss="initial")
        ids = np.array([0, 1, -1, 2**63 - 1, -(2**63), 987654321])
        model = np.stack([initial_values(one, fid) for fid in ids.tolist()])
        assert np.array_equal(Table(one).lookup(ids), model)


def test_the_mixing_function_is_splitmix64() -> None:
    # The first outputs of splitmix64 with seed 0; first values on disk depend on them for ever.
    assert scramble(0) == 0xE220A8397B1DCDAF
    assert scramble(0x9E3779B97F4A7C15) == 0x6E789E6AA1B965F4


def test_the_seed_of_a_table_is_pinned() -> None:
    assert table_seed(TableSpec("user", [SliceSpec(1, optimizer=Sgd())])) == 0xB015F1BD135FE643


# --- 3.2 compressors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressor", [Fp32(), Fp16()], ids=["fp32", "fp16"])
def test_training_reads_raw_values_behind_fp32_and_fp16(make: Any, compressor: Compressor) -> None:
    values = [0.1, -1e-5, 1e5, 0.0]
    assert np.array_equal(trained_read(make, compressor, values), np.array(values, np.float32))


def test_serving_shows_the_values_that_the_bytes_can_hold() -> None:
    values = [0.1, -1.5, 65504.0, 1e-8, 3.14159265]
    assert np.array_equal(served(Fp32(), values), np.array(values, np.float32))
    assert np.array_equal(served(Fp16(), values), np.array(values, np.float16).astype(np.float32))


STEP = 5 / 128
FIXED_VALUES = [1.4 * STEP, 1.6 * STEP, -1.4 * STEP, -1.6 * STEP, 100.0, -100.0, 0.0, np.nan]
FIXED_EXPECTED = [STEP, 2 * STEP, -STEP, -2 * STEP, 127 * STEP, -128 * STEP, 0, 0]


def test_fixed_r8_rounds_in_training(make: Any) -> None:
    assert trained_read(make, FixedR8(5.0), FIXED_VALUES).tolist() == FIXED_EXPECTED


def test_fixed_r8_rounds_the_same_in_serving() -> None:
    assert served(FixedR8(5.0), FIXED_VALUES).tolist() == FIXED_EXPECTED


def test_fixed_r8_rounds_halves_away_from_zero(make: Any) -> None:
    assert trained_read(make, FixedR8(1.0), [0.5 / 128, -0.5 / 128, 1.5 / 128]).tolist() == [1 / 128, -1 / 128, 2 / 128]


def test_fixed_r8_passes_gradients_straight_through(make: Any) -> None:
    table = make(spec(FixedR8(1.0)))
    table.apply_gradients(ID, np.array([[-0.3]], np.float32))
    assert table.entry(3).values[0] == np.float32(0.3)


HASHNET = OneBit(step_size=1000, amplitude=0.1)


def test_one_bit_reads_a_soft_sign_in_training(make: Any) -> None:
    assert trained_read(make, HASHNET, [1.0, 2.0]) == pytest.approx(np.array([0.07615941, 0.09640275]), rel=1e-6)


def stored_gradient(table: Any, weight: float, grad: float, step: int) -> float:
    """The part of a gradient that reaches the stored weight: a moving average without momentum keeps exactly that."""
    table.assign(ID, np.array([[weight]], np.float32))
    table.apply_gradients(ID, np.array([[grad]], np.float32), step=step)
    return float(table.entry(3).values[0])


def gradient_keeper(compressor: Compressor) -> TableSpec:
    return TableSpec("t", [SliceSpec(1, optimizer=MovingAverage(momentum=0.0), compressor=compressor)])


def test_one_bit_scales_gradients_by_the_slope_of_the_soft_sign(make: Any) -> None:
    table = make(gradient_keeper(HASHNET))
    assert stored_gradient(table, 2.0, 1.0, 0) == pytest.approx(0.00706508, rel=1e-5)
    assert stored_gradient(table, 2.0, 2.0, 999) == pytest.approx(0.01413016, rel=1e-5)
    # From step 1000 on the scale is sqrt(6) = 2.4494897. 1 - tanh^2 has lost three digits there.
    assert stored_gradient(table, 2.0, 100.0, 1000) == pytest.approx(0.005442613, rel=1e-3)
    assert stored_gradient(table, 2.0, 200.0, 1001) == pytest.approx(0.01088523, rel=1e-3)
    table.assign(ID, np.array([[2]], np.float32))
    assert table.lookup(ID)[0, 0] == pytest.approx(0.09998888, rel=1e-6)


def test_one_bit_moves_its_scale_at_multiples_of_its_step_size(make: Any) -> None:
    table = make(gradient_keeper(OneBit(step_size=100, amplitude=0.1)))
    assert stored_gradient(table, 1.0, 1.0, 100) == pytest.approx(0.35840667 * 0.1, rel=1e-5)


def test_one_bit_never_grows_past_its_largest_scale(make: Any) -> None:
    table = make(spec(OneBit(step_size=10, max_scale=1.5, amplitude=1.0)))
    table.apply_gradients(ID, np.zeros((1, 1), np.float32), step=1_000_000)
    table.assign(ID, np.array([[0.5]], np.float32))
    assert table.lookup(ID)[0, 0] == pytest.approx(np.tanh(0.75), rel=1e-6)


def test_one_bit_serves_the_sign_and_takes_zero_for_negative() -> None:
    values = [100, 0.1, 1e-5, 0, -1e-5, -0.1, -100]
    assert served(OneBit(amplitude=1.0), values).tolist() == [1, 1, 1, -1, -1, -1, -1]
    assert served(OneBit(), [3.0] * 9).tolist() == pytest.approx([0.05] * 9)


def test_serving_tables_with_many_slices_keep_each_in_its_own_form() -> None:
    forms = [Fp16(), OneBit(amplitude=1.0), FixedR8(1.0), Fp32()]
    table = Table(TableSpec("t", [SliceSpec(3, optimizer=Sgd(), compressor=form) for form in forms]))
    values = np.tile(np.array([0.1, -0.2, 0.3], np.float32), 4)
    table.assign(ID, values[None])
    row = table.to_serving().lookup(ID)[0]
    assert row[:3].tolist() == values[:3].astype(np.float16).astype(np.float32).tolist()
    assert row[3:6].tolist() == [1, -1, 1]
    assert row[6:9] == pytest.approx(np.array([13 / 128, -26 / 128, 38 / 128]))
    assert row[9:].tolist() == values[:3].tolist()


# --- 3.3 schedules ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "expected"), [(0, 0.01), (1, 0.02), (2, 0.03), (10, 0.11), (11, 0.11), (10**9, 0.11)])
def test_a_growing_schedule(step: int, expected: float) -> None:
    assert PolynomialDecay(0.01, 10, 0.11)(step) == pytest.approx(expected)


def test_a_schedule_may_bend_and_may_cycle() -> None:
    assert PolynomialDecay(1.0, 10, 0.0, power=2.0)(5) == pytest.approx(0.25)
    cycling = PolynomialDecay(1.0, 10, 0.0, cycle=True)
    assert [cycling(step) for step in (0, 5, 10, 15, 20)] == pytest.approx([1, 0.5, 0, 0.25, 0])


def test_three_steps_of_adagrad_with_a_constant_schedule(make: Any) -> None:
    schedule = PolynomialDecay(3.0, 10, 11.0)
    table = make(TableSpec("t", [SliceSpec(2, optimizer=Adagrad(), learning_rate=schedule)]))
    table.assign(np.array([1, 2]), np.array([[1, 2], [3, 4]], np.float32))
    for _ in range(3):
        table.apply_gradients(np.array([1, 2]), np.array([[0.1, 0.1], [0.01, 0.01]], np.float32), step=0)
    expected = [[1 - 2.60260987, 2 - 2.60260987], [2.71567917, 3.71567917]]
    assert table.lookup(np.array([1, 2])) == pytest.approx(np.array(expected), rel=1e-6)
