"""Optimizers as settings: the engine's settings, and refused values."""

from __future__ import annotations

from typing import Any

import pytest

from monolith.core.errors import ConfigError
from monolith.embedding.optimizers import (
    OPTIMIZERS,
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
    RmsProp,
    Sgd,
    StochasticRoundingFp16,
)


def test_there_are_sixteen_and_each_is_known_by_its_kind() -> None:
    assert len(OPTIMIZERS) == 16
    assert all(cls.kind == kind for kind, cls in OPTIMIZERS.items())


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        (Sgd(), {}),
        (Adagrad(), {"initial_accumulator_value": 0.1, "weight_decay_factor": 0.0}),
        (Adam(), {"beta1": 0.9, "beta2": 0.99, "weight_decay_factor": 0.0, "use_nesterov": 0.0, "epsilon": 0.01}),
        (
            Amsgrad(use_nesterov=True),
            {"beta1": 0.9, "beta2": 0.99, "weight_decay_factor": 0.0, "use_nesterov": 1.0, "epsilon": 0.01},
        ),
        (Momentum(), {"weight_decay_factor": 0.0, "use_nesterov": 0.0, "momentum": 0.9}),
        (MovingAverage(), {"momentum": 0.9}),
        (RmsProp(), {"weight_decay_factor": 0.0, "momentum": 0.9}),
        (
            Ftrl(),
            {
                "beta": 0.0,
                "initial_accumulator_value": 0.1,
                "l1_regularization_strength": 0.0,
                "l2_regularization_strength": 0.0,
            },
        ),
        (BatchSoftmax(), {}),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_settings_hold_exactly_the_fields_of_the_engine(optimizer: Any, settings: dict[str, float]) -> None:
    assert optimizer.settings() == settings


def test_defaults_are_those_of_the_originals_python_classes() -> None:
    assert [Sgd().learning_rate, Adagrad().learning_rate, BatchSoftmax().learning_rate] == [0.01, 0.001, 0.1]
    dynamic = DynamicWdAdagrad()
    assert dynamic.decouple_weight_decay
    assert dynamic.enable_dynamic_wd
    assert dynamic.flip_direction
    assert (GroupFtrl().beta, GroupFtrl().initial_accumulator_value) == (1.0, 0.0)
    assert (GroupAdagrad().beta, GroupAdagrad().initial_accumulator_value) == (0.0, 0.1)


def test_wrappers_show_the_inner_rule_and_their_additions() -> None:
    both = StochasticRoundingFp16(DelayCompensated(Adagrad(0.3), 0.25))
    assert both.base == Adagrad(0.3)
    assert both.delay_lambda == 0.25
    assert both.stochastic_rounding
    assert not both.optimizer.stochastic_rounding
    assert DelayCompensated(Sgd(), 0.5).settings() == {"lambda_": 0.5}
    assert StochasticRoundingFp16(Sgd()).settings() == {}
    assert (Sgd().base, Sgd().delay_lambda, Sgd().stochastic_rounding) == (Sgd(), 0.0, False)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Sgd(-0.1), "Sgd.learning_rate is -0.1"),
        (lambda: Sgd(float("nan")), "Sgd.learning_rate is nan"),
        (lambda: Sgd("fast"), "Sgd.learning_rate is 'fast'"),  # type: ignore[arg-type]
        (lambda: Sgd(True), "Sgd.learning_rate is True"),
        (lambda: Sgd(warmup_steps=-1), "Sgd.warmup_steps is -1"),
        (lambda: Sgd(warmup_steps=1.5), "Sgd.warmup_steps is 1.5"),  # type: ignore[arg-type]
        (lambda: Adagrad(initial_accumulator_value=-1.0), "Adagrad.initial_accumulator_value is -1.0"),
        (lambda: Adagrad(weight_decay_factor=-1.0), "Adagrad.weight_decay_factor is -1.0"),
        (lambda: Adam(beta1=1.0), "Adam.beta1 is 1.0"),
        (lambda: Adam(epsilon=0.0), "Adam.epsilon is 0.0"),
        (lambda: Adam(use_nesterov=1), "Adam.use_nesterov is 1"),  # type: ignore[arg-type]
        (lambda: Momentum(use_nesterov=1), "Momentum.use_nesterov is 1"),  # type: ignore[arg-type]
        (lambda: Momentum(momentum=1.0), "Momentum.momentum is 1.0"),
        (lambda: Ftrl(l1_regularization_strength=float("inf")), "Ftrl.l1_regularization_strength is inf"),
        (lambda: DynamicWdAdagrad(dynamic_wd_temperature=0.0), "DynamicWdAdagrad.dynamic_wd_temperature is 0.0"),
        (lambda: DelayCompensated("sgd", 0.1), "DelayCompensated.optimizer is 'sgd'"),  # type: ignore[arg-type]
        (lambda: DelayCompensated(DelayCompensated(Sgd(), 0.1), 0.1), "wrap it only once"),
    ],
)
def test_a_bad_setting_is_refused_by_name_and_value(build: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build()
    assert message in str(caught.value)
