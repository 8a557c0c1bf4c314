"""Initializers, compressors, filters and schedules as settings: the engine's settings, and refused values."""

from __future__ import annotations

from typing import Any

import pytest

from monolith.core.errors import ConfigError
from monolith.embedding.admission import NoFilter, ProbabilisticFilter, SlidingHashFilter
from monolith.embedding.compressors import FixedR8, Fp16, Fp32, OneBit
from monolith.embedding.initializers import Constant, Ones, RandomUniform, Zeros
from monolith.embedding.learning_rates import CallableRate, ConstantRate, PolynomialDecay, as_rate_function


@pytest.mark.parametrize(
    ("part", "kind", "settings"),
    [
        (Zeros(), "zeros", {}),
        (Ones(), "ones", {}),
        (Constant(3), "constants", {"constant": 3.0}),
        (RandomUniform(), "random_uniform", {"minval": -0.05, "maxval": 0.05}),
        (RandomUniform(-1, 2), "random_uniform", {"minval": -1.0, "maxval": 2.0}),
        (Fp32(), "fp32", {}),
        (Fp16(), "fp16", {}),
        (FixedR8(), "fixed_r8", {"r": 1.0}),
        (OneBit(), "one_bit", {"step_size": 200.0, "init_scale": 1.0, "max_scale": 10000.0, "amplitude": 0.05}),
        (NoFilter(), "no_filter", {}),
        (SlidingHashFilter(1000), "sliding_hash_filter", {"capacity": 1000.0, "split_num": 7.0}),
        (ProbabilisticFilter(), "probabilistic_filter", {"equal_probability": 1.0}),
        (ProbabilisticFilter(equal_probability=False), "probabilistic_filter", {"equal_probability": 0.0}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_part_has_the_kind_and_settings_of_the_engine(part: Any, kind: str, settings: dict[str, float]) -> None:
    assert part.kind == kind
    assert part.settings() == settings
    assert all(type(value) is float for value in part.settings().values())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Constant("x"), "Constant.constant is 'x'"),  # type: ignore[arg-type]
        (lambda: RandomUniform(1, 0), "RandomUniform.minval is 1, above maxval 0"),
        (lambda: RandomUniform(0, float("inf")), "RandomUniform.maxval is inf"),
        (lambda: FixedR8(0.0), "FixedR8.r is 0.0"),
        (lambda: OneBit(step_size=0), "OneBit.step_size is 0"),
        (lambda: OneBit(amplitude=0.0), "OneBit.amplitude is 0.0"),
        (lambda: OneBit(max_scale=0.5), "OneBit.max_scale is 0.5, below init_scale"),
        (lambda: SlidingHashFilter(0), "SlidingHashFilter.capacity is 0"),
        (lambda: SlidingHashFilter(1000, split_num=4), "SlidingHashFilter.split_num is 4"),
        (lambda: SlidingHashFilter(300, split_num=300), "use at most 151"),
        (lambda: ProbabilisticFilter(equal_probability=1), "equal_probability is 1"),  # type: ignore[arg-type]
        (lambda: PolynomialDecay(0.1, 0), "PolynomialDecay.decay_steps is 0"),
        (lambda: PolynomialDecay(-0.1, 5), "PolynomialDecay.initial_learning_rate is -0.1"),
        (lambda: PolynomialDecay(0.1, 5, power=0.0), "PolynomialDecay.power is 0.0"),
        (lambda: ConstantRate(-1.0), "ConstantRate.value is -1.0"),
        (lambda: as_rate_function("fast"), "learning_rate is 'fast'"),
        (lambda: as_rate_function(True), "learning_rate is True"),
    ],
)
def test_a_bad_setting_is_refused_by_name_and_value(build: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build()
    assert message in str(caught.value)


def test_the_text_of_a_schedule_is_its_class_and_sorted_parameters() -> None:
    text = (
        "PolynomialDecay(cycle=False, decay_steps=10, end_learning_rate=0.0001, initial_learning_rate=1.0, power=1.0)"
    )
    assert str(PolynomialDecay(1, 10)) == text
    assert str(ConstantRate(1)) == "ConstantRate(value=1.0)"


def test_numbers_functions_and_schedules_all_become_schedules() -> None:
    assert as_rate_function(0.5)(3) == 0.5
    assert as_rate_function(lambda: 0.25)(3) == 0.25
    assert as_rate_function(lambda step: step / 2)(3) == 1.5
    schedule = PolynomialDecay(1.0, 10)
    assert as_rate_function(schedule) is schedule


def test_only_the_very_same_function_has_the_same_text() -> None:
    def one() -> float:
        return 1.0

    assert str(CallableRate(one)) == str(CallableRate(one))
    assert str(CallableRate(lambda: 1.0)) != str(CallableRate(one))
