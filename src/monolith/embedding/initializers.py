"""Initializers: the values of a new row, a pure function of (seed, table, id), so order never matters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from monolith.core.errors import ConfigError
from monolith.embedding._part import SpecPart, check_number

__all__ = ["INITIALIZERS", "Constant", "Initializer", "Ones", "RandomUniform", "Zeros"]


class Initializer(SpecPart):
    """The base of all initializers."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Zeros(Initializer):
    """All zeros."""

    kind: ClassVar[str] = "zeros"


@dataclass(frozen=True, slots=True)
class Ones(Initializer):
    """All ones."""

    kind: ClassVar[str] = "ones"


@dataclass(frozen=True, slots=True)
class Constant(Initializer):
    """The same number everywhere."""

    kind: ClassVar[str] = "constants"

    constant: float
    """The number."""

    def __post_init__(self) -> None:
        check_number(self, "constant")


@dataclass(frozen=True, slots=True)
class RandomUniform(Initializer):
    """Uniform in [minval, maxval), drawn from a hash of seed, table, id and position."""

    kind: ClassVar[str] = "random_uniform"

    minval: float = -0.05
    """Smallest value."""
    maxval: float = 0.05
    """Bound above all values."""

    def __post_init__(self) -> None:
        check_number(self, "minval")
        check_number(self, "maxval")
        if self.minval > self.maxval:
            raise ConfigError(f"RandomUniform.minval is {self.minval!r}, above maxval {self.maxval!r}; swap them")


INITIALIZERS: Mapping[str, type[Initializer]] = {cls.kind: cls for cls in (Zeros, Ones, Constant, RandomUniform)}
"""Every initializer class by its kind."""
