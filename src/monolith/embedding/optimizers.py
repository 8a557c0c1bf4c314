"""The update rules a slice can have, as settings. The arithmetic lives in the engine.

``learning_rate`` is only where the rate of a step comes from: the rate itself is an argument of every update, so the
engine never sees it. ``warmup_steps`` above 0 makes the rate climb from 0 to ``learning_rate`` over so many steps.
Defaults are those of the original's Python classes, or of its configuration messages where the classes leave them open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from monolith.core.errors import ConfigError
from monolith.embedding._part import SpecPart, check_bool, check_decay, check_number, check_whole


class Optimizer(SpecPart):
    """The base of all update rules."""

    __slots__ = ()

    python_only: ClassVar[frozenset[str]] = frozenset(
        {"learning_rate", "warmup_steps", "hessian_compression_times", "use_beta1_warmup"}
    )

    @property
    def base(self) -> Optimizer:
        """The rule itself, without the wrappers around it."""
        return self

    @property
    def delay_lambda(self) -> float:
        """The factor of delay compensation; 0 = off."""
        return 0.0

    @property
    def stochastic_rounding(self) -> bool:
        """Whether weights are rounded to fp16 values after each step."""
        return False


def _check_rate(optimizer: Optimizer) -> None:
    check_number(optimizer, "learning_rate", at_least=0.0)
    if hasattr(optimizer, "warmup_steps"):
        check_whole(optimizer, "warmup_steps")
    if hasattr(optimizer, "weight_decay_factor"):
        check_number(optimizer, "weight_decay_factor", at_least=0.0)


@dataclass(frozen=True, slots=True)
class Sgd(Optimizer):
    """Plain gradient descent: w -= lr * g."""

    kind: ClassVar[str] = "sgd"

    learning_rate: float = 0.01
    """Rate of a step when the caller gives none."""
    _: KW_ONLY
    warmup_steps: int = 0
    """Steps over which the rate climbs from 0."""

    def __post_init__(self) -> None:
        _check_rate(self)


@dataclass(frozen=True, slots=True)
class Adagrad(Optimizer):
    """Adagrad without epsilon: n += g'^2; w -= lr * g' / sqrt(n), with g' = g + weight_decay_factor * w."""

    kind: ClassVar[str] = "adagrad"

    learning_rate: float = 0.001
    """Rate of a step when the caller gives none."""
    _: KW_ONLY
    initial_accumulator_value: float = 0.1
    """First value of the squared sum n."""
    hessian_compression_times: int = 1
    """Kept for configuration files of the original; it has no effect."""
    weight_decay_factor: float = 0.0
    """L2 decay, added to the gradient."""
    warmup_steps: int = 0
    """Steps over which the rate climbs from 0."""

    def __post_init__(self) -> None:
        _check_rate(self)
        check_number(self, "initial_accumulator_value", at_least=0.0)
        check_whole(self, "hessian_compression_times", at_least=1)


@dataclass(frozen=True, slots=True)
class Adadelta(Optimizer):
    """Adadelta: the step is scaled by the running size of earlier steps over that of the gradients."""

    kind: ClassVar[str] = "adadelta"

    learning_rate: float = 0.01
    """Rate of a step when the caller gives none."""
    _: KW_ONLY
    weight_decay_factor: float = 0.0
    """L2 decay, added to the gradient."""
    averaging_ratio: float = 0.9
    """How much of the running squares survives a step."""
    epsilon: float = 0.01
    """Added under both square roots."""
    warmup_steps: int = 0
    """Steps over which the rate climbs from 0."""

    def __post_init__(self) -> None:
        _check_rate(self)
        check_decay(self, "averaging_ratio")
        check_number(self, "epsilon", above=0.0)


@dataclass(frozen=True, slots=True)
class Adam(Optimizer):
    """Adam with bias correction per row. Note the defaults of beta2 and epsilon: those of the original."""

    kind: ClassVar[str] = "adam"

    learning_rate: float = 0.01
    """Rate of a step when the caller gives none."""
    _: KW_ONLY
    beta1: float = 0.9
    """How much of the mean survives a step."""
    beta2: float = 0.99
    """How much of the squares survives a step."""
    use_beta1_warmup: bool = False
    """Kept for configuration files of the original; it has no effect."""
    weight_decay_factor: float = 0.0
    """L2 decay, added to the gradient."""
    use_nesterov: bool = False
    """Step along the mean as it will be after this gradient."""
    epsilon: float = 0.01
    """Added to the square root of the squares."""
    warmup_steps: int = 0
    """Steps over which the rate climbs from 0."""

    def __post_init__(self) -> None:
        _check_moments(self)
        check_bool(self, "use_beta1_warmup")


@dataclass(frozen=True, slots=True)
class Amsgrad(Optimizer):
    """Adam whose denominator uses the largest squares seen so far."""

    kind: ClassVar[str] = "amsgrad"

    learning_rate: float = 0.01
    """Rate of a step when the caller gives none."""
    _: KW_ONLY
    beta1: float = 0.9
    """How much of the mean survives a step."""
    beta2: float = 0.99
    """How much of the squares survives a step."""
    weight_decay_factor: float = 0.0
    """L2 decay, added to the gradient."""
    use_nesterov: bool = False
    """Step along the mean as it will be after this gradient."""
    epsilon: float = 0.01
    """Added to the square root of the squares."""
    warmup_steps: int = 0
    """Steps over which the rate climbs from 0."""

    def __post_init__(self) -> None:
        _check_moments(self)


def _check_moments(optimizer: Adam | Amsgrad) -> None:
    _check_rate(optimizer)
    check_decay(optimizer, "beta1")
    check_decay(optimizer, "beta2")
    check_bool(optimizer, "use_nesterov")
    check_number(optimizer, "epsilon", above=0.0)


@dataclass(frozen=True, slots=True)
class Momentum(Optimizer):
    """Heavy-ball momentum: n = momentum * n - lr * g'; w += n."""

    kind: ClassVar[str] = "momentum"

    learning_rate: float = 0.01
    """Rate of a step when the caller gives none."""
    _: KW_ONLY
    weight_decay_factor: float = 0.0
    """L2 decay, added to the gradient."""
    use_nesterov: bool = False
    """Look ahead along the momentum before stepping."""
    momentum: float = 0.9
    """How much of the last step is kept."""
    warmup_steps: int = 0
    """Steps over which the rate climbs from 0."""

    def __post_init__(self) -> None:
        _check_rate(self)
        check_bool(self, "use_nesterov")
        check_decay(self, "momentum")


@dataclass(frozen=True, slots=True)
class MovingAverage(Optimizer):
    """Running mean of the gradients: w = momentum * w + (1 - momentum) * g. Ignores the rate."""

    kind: ClassVar[str] = "moving_average"

    momentum: float = 0.9
    """How much of the old value is kept."""

    def __post_init__(self) -> None:
        check_decay(self, "momentum")


@dataclass(frozen=True, slots=True)
class RmsProp(Optimizer):
    """RMSProp with a decayed mean of squares and 1 as epsilon."""

    kind: ClassVar[str] = "rmsprop"

    learning_rate: float = 0.01
    """Rate of a step when the caller gives none."""
    _: KW_ONLY
    weight_decay_factor: float = 0.0
    """L2 decay, added to the gradient."""
    momentum: float = 0.9
    """How much of the squares survives a step."""

    def __post_init__(self) -> None:
        _check_rate(self)
        check_decay(self, "momentum")


@dataclass(frozen=True, slots=True)
class RmsPropV2(Optimizer):
    """RMSProp whose squares are summed with decay, not averaged: n = momentum * n + g'^2."""

    kind: ClassVar[str] = "rmspropv2"

    learning_rate: float = 0.01
    """Rate of a step when the caller gives none."""
    _: KW_ONLY
    weight_decay_factor: float = 0.0
    """L2 decay, added to the gradient."""
    momentum: float = 0.9
    """How much of the squares survives a step."""

    def __post_init__(self) -> None:
        _check_rate(self)
        check_decay(self, "momentum")


@dataclass(frozen=True, slots=True)
class Ftrl(Optimizer):
    """FTRL-proximal, coordinate by coordinate."""

    kind: ClassVar[str] = "ftrl"

    learning_rate: float = 0.01
    """Rate of a step when the caller gives none; a rate of 0 leaves the row as it is."""
    _: KW_ONLY
    beta: float = 0.0
    """Added to the square root in the denominator."""
    initial_accumulator_value: float = 0.1
    """First value of the squared sum."""
    l1_regularization_strength: float = 0.0
    """Weights whose pull is below this become exactly 0."""
    l2_regularization_strength: float = 0.0
    """Shrinks all weights."""
    warmup_steps: int = 0
    """Steps over which the rate climbs from 0."""

    def __post_init__(self) -> None:
        _check_ftrl(self)


@dataclass(frozen=True, slots=True)
class GroupFtrl(Optimizer):
    """FTRL with one l1 threshold for the whole slice: a slice is kept or zeroed as a group."""

    kind: ClassVar[str] = "group_ftrl"

    learning_rate: float = 0.01
    """Rate of a step when the caller gives none; a rate of 0 leaves the row as it is."""
    _: KW_ONLY
    beta: float = 1.0
    """Added to the square root in the denominator."""
    initial_accumulator_value: float = 0.0
    """First value of the squared sum."""
    l1_regularization_strength: float = 0.0
    """A slice whose pull has a smaller norm than this becomes exactly 0."""
    l2_regularization_strength: float = 0.0
    """Shrinks all weights."""
    warmup_steps: int = 0
    """Steps over which the rate climbs from 0."""

    def __post_init__(self) -> None:
        _check_ftrl(self)


def _check_ftrl(optimizer: Ftrl | GroupFtrl) -> None:
    _check_rate(optimizer)
    for field in ("beta", "initial_accumulator_value", "l1_regularization_strength", "l2_regularization_strength"):
        check_number(optimizer, field, at_least=0.0)


@dataclass(frozen=True, slots=True)
class GroupAdagrad(Optimizer):
    """Adagrad with one squared sum per slice and a group-lasso threshold."""

    kind: ClassVar[str] = "group_adagrad"

    learning_rate: float = 0.01
    """Rate of a step when the caller gives none."""
    _: KW_ONLY
    beta: float = 0.0
    """Added to the square root in the denominator."""
    initial_accumulator_value: float = 0.1
    """First value of the squared sum."""
    l2_regularization_strength: float = 0.0
    """A slice whose pull has a smaller norm than this becomes exactly 0."""
    weight_decay_factor: float = 0.0
    """L2 decay, added to the gradient."""
    warmup_steps: int = 0
    """Steps over which the rate climbs from 0."""

    def __post_init__(self) -> None:
        _check_rate(self)
        for field in ("beta", "initial_accumulator_value", "l2_regularization_strength"):
            check_number(self, field, at_least=0.0)


@dataclass(frozen=True, slots=True)
class DynamicWdAdagrad(Optimizer):
    """Adagrad whose weight decay depends on how long a row has been idle.

    The original never published its rule. Ours: with d steps since the row's last update the decay is
    ``weight_decay_factor * (1 - exp(-d / dynamic_wd_temperature))``, or with ``flip_direction``
    ``weight_decay_factor * exp(-d / dynamic_wd_temperature)``.
    """

    kind: ClassVar[str] = "dynamic_wd_adagrad"

    learning_rate: float = 0.001
    """Rate of a step when the caller gives none."""
    _: KW_ONLY
    initial_accumulator_value: float = 0.1
    """First value of the squared sum."""
    hessian_compression_times: int = 1
    """Kept for configuration files of the original; it has no effect."""
    weight_decay_factor: float = 0.0
    """Decay at full strength."""
    warmup_steps: int = 0
    """Steps over which the rate climbs from 0."""
    decouple_weight_decay: bool = True
    """Subtract lr * decay * w from the weight instead of adding decay * w to the gradient."""
    enable_dynamic_wd: bool = True
    """Let the decay depend on the idle steps; else it is always at full strength."""
    dynamic_wd_temperature: float = 1.0
    """Idle steps after which about two thirds of the change have happened."""
    flip_direction: bool = True
    """Decay less, not more, the longer a row was idle."""

    def __post_init__(self) -> None:
        _check_rate(self)
        check_number(self, "initial_accumulator_value", at_least=0.0)
        check_whole(self, "hessian_compression_times", at_least=1)
        check_number(self, "dynamic_wd_temperature", above=0.0)
        for field in ("decouple_weight_decay", "enable_dynamic_wd", "flip_direction"):
            check_bool(self, field)


@dataclass(frozen=True, slots=True)
class BatchSoftmax(Optimizer):
    """Estimates how many steps lie between two sightings of an id; only for slices of dim 1. Ignores the gradient."""

    kind: ClassVar[str] = "batch_softmax"

    learning_rate: float = 0.1
    """Weight of the newest interval."""

    def __post_init__(self) -> None:
        _check_rate(self)


@dataclass(frozen=True, slots=True)
class DelayCompensated(Optimizer):
    """Corrects late gradients, then lets ``optimizer`` step: g + lambda_ * g^2 * (w - w at gradient time)."""

    kind: ClassVar[str] = "dc"

    optimizer: Optimizer
    """The rule that steps."""
    lambda_: float = 0.0
    """Strength of the correction; 0 = none."""

    def __post_init__(self) -> None:
        _check_wrapped(self, self.optimizer)
        check_number(self, "lambda_", at_least=0.0)
        if self.optimizer.delay_lambda:
            raise ConfigError(
                f"DelayCompensated.optimizer is {self.optimizer!r}, which compensates already; wrap it only once"
            )

    def settings(self) -> dict[str, float]:
        """Return the settings of the wrapper alone; those of the rule are ``base.settings()``."""
        return {"lambda_": float(self.lambda_)}

    @property
    def base(self) -> Optimizer:
        """The rule itself, without the wrappers around it."""
        return self.optimizer.base

    @property
    def delay_lambda(self) -> float:
        """The factor of delay compensation; 0 = off."""
        return float(self.lambda_)

    @property
    def stochastic_rounding(self) -> bool:
        """Whether weights are rounded to fp16 values after each step."""
        return self.optimizer.stochastic_rounding


@dataclass(frozen=True, slots=True)
class StochasticRoundingFp16(Optimizer):
    """Lets ``optimizer`` step, then rounds each weight up or down to an fp16 value, unbiased on average."""

    kind: ClassVar[str] = "stochastic_rounding_float16"

    optimizer: Optimizer
    """The rule that steps."""

    def __post_init__(self) -> None:
        _check_wrapped(self, self.optimizer)

    def settings(self) -> dict[str, float]:
        """Return the settings of the wrapper alone: none. Those of the rule are ``base.settings()``."""
        return {}

    @property
    def base(self) -> Optimizer:
        """The rule itself, without the wrappers around it."""
        return self.optimizer.base

    @property
    def delay_lambda(self) -> float:
        """The factor of delay compensation; 0 = off."""
        return self.optimizer.delay_lambda

    @property
    def stochastic_rounding(self) -> bool:
        """Whether weights are rounded to fp16 values after each step."""
        return True


def _check_wrapped(wrapper: Optimizer, wrapped: object) -> None:
    if not isinstance(wrapped, Optimizer):
        raise ConfigError(f"{type(wrapper).__name__}.optimizer is {wrapped!r}; give an optimizer such as Adagrad()")


OPTIMIZERS: Mapping[str, type[Optimizer]] = {
    cls.kind: cls
    for cls in (
        Sgd,
        Adagrad,
        Adadelta,
        Adam,
        Amsgrad,
        Momentum,
        MovingAverage,
        RmsProp,
        RmsPropV2,
        Ftrl,
        GroupFtrl,
        GroupAdagrad,
        DynamicWdAdagrad,
        BatchSoftmax,
        DelayCompensated,
        StochasticRoundingFp16,
    )
}
"""Every optimizer class by its kind."""

__all__ = ["OPTIMIZERS", "Optimizer", *(cls.__name__ for cls in OPTIMIZERS.values())]
