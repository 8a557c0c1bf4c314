"""Learning rates as functions of the step. Two functions with equal text are the same schedule."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from monolith.core.errors import ConfigError
from monolith.embedding._part import SpecPart, check_bool, check_number, check_whole, fields_of

__all__ = [
    "LEARNING_RATES",
    "CallableRate",
    "ConstantRate",
    "LearningRate",
    "LearningRateFunction",
    "PolynomialDecay",
    "as_rate_function",
]


class LearningRateFunction(ABC):
    """The rate of each step. Subclass it for another schedule.

    Two functions with equal text are taken for the same schedule when tables are merged.
    """

    __slots__ = ()

    @abstractmethod
    def __call__(self, step: int) -> float:
        """Return the rate of ``step``, counted from 0."""

    @abstractmethod
    def __str__(self) -> str:
        """Return the class name and every parameter, sorted by name."""


class _SettingsRate(LearningRateFunction, SpecPart):
    """A schedule that its dataclass fields describe completely, so it can be written as JSON."""

    __slots__ = ()

    def __str__(self) -> str:
        """Return the class name and every parameter, sorted by name."""
        settings = ", ".join(f"{name}={value!r}" for name, value in sorted(fields_of(self).items()))
        return f"{type(self).__name__}({settings})"


@dataclass(frozen=True, slots=True)
class ConstantRate(_SettingsRate):
    """The same rate at every step."""

    kind: ClassVar[str] = "constant"

    value: float
    """The rate."""

    def __post_init__(self) -> None:
        check_number(self, "value", at_least=0.0)
        object.__setattr__(self, "value", float(self.value))

    def __call__(self, step: int) -> float:
        """Return the rate, at every step."""
        return self.value


@dataclass(frozen=True, slots=True)
class PolynomialDecay(_SettingsRate):
    """Moves from one rate to another over ``decay_steps`` steps; growing schedules work too.

    >>> round(PolynomialDecay(0.01, 10, 0.11)(1), 6)
    0.02
    """

    kind: ClassVar[str] = "polynomial_decay"

    initial_learning_rate: float
    """Rate at step 0."""
    decay_steps: int
    """Steps until the end rate is reached."""
    end_learning_rate: float = 0.0001
    """Rate from then on."""
    _: KW_ONLY
    power: float = 1.0
    """1 is a straight line."""
    cycle: bool = False
    """Stretch the schedule to the next multiple of ``decay_steps`` instead of stopping at the end rate."""

    def __post_init__(self) -> None:
        check_number(self, "initial_learning_rate", at_least=0.0)
        check_whole(self, "decay_steps", at_least=1)
        check_number(self, "end_learning_rate", at_least=0.0)
        check_number(self, "power", above=0.0)
        check_bool(self, "cycle")
        for field in ("initial_learning_rate", "end_learning_rate", "power"):
            object.__setattr__(self, field, float(getattr(self, field)))

    def __call__(self, step: int) -> float:
        """Return the rate of ``step``."""
        decay_steps = self.decay_steps
        if self.cycle:
            decay_steps *= max(1, math.ceil(step / decay_steps))
        done = min(step, decay_steps) / decay_steps
        left: float = (1.0 - done) ** self.power
        return (self.initial_learning_rate - self.end_learning_rate) * left + self.end_learning_rate


@dataclass(frozen=True, slots=True)
class CallableRate(LearningRateFunction):
    """A plain function as a schedule: it takes the step, or nothing. It has no JSON form."""

    function: Callable[..., float]
    """Called once per step."""

    def __call__(self, step: int) -> float:
        """Return the rate at ``step``."""
        return float(self.function(step) if _takes_an_argument(self.function) else self.function())

    def __str__(self) -> str:
        """Return the name of the function and its identity: a function equals only itself."""
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        return f"CallableRate(function={name}@{id(self.function):#x})"


LearningRate = float | LearningRateFunction | Callable[..., float]
"""Accepted forms of a slice's rate."""


def as_rate_function(rate: Any) -> LearningRateFunction:
    """Turn a number, a callable or a schedule into a schedule."""
    if isinstance(rate, LearningRateFunction):
        return rate
    if isinstance(rate, int | float) and not isinstance(rate, bool):
        return ConstantRate(rate)
    if callable(rate):
        return CallableRate(rate)
    raise ConfigError(f"learning_rate is {rate!r}; give a number, a function of the step or a LearningRateFunction")


def _takes_an_argument(function: Callable[..., float]) -> bool:
    positional = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    return any(parameter.kind in positional for parameter in inspect.signature(function).parameters.values())


LEARNING_RATES: Mapping[str, type[_SettingsRate]] = {cls.kind: cls for cls in (ConstantRate, PolynomialDecay)}
"""Every schedule with a JSON form, by its kind."""
