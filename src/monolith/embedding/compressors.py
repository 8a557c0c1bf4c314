"""Compressors: how serving stores a slice.

``Fp32`` and ``Fp16`` do not change training. With ``FixedR8`` and ``OneBit``, training reads the values that serving
will read, so the model learns with the loss of precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from monolith.core.errors import ConfigError
from monolith.embedding._part import SpecPart, check_number, check_whole

__all__ = ["COMPRESSORS", "Compressor", "FixedR8", "Fp16", "Fp32", "OneBit"]


class Compressor(SpecPart):
    """The base of all compressors."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Fp32(Compressor):
    """4 bytes a number: no loss."""

    kind: ClassVar[str] = "fp32"


@dataclass(frozen=True, slots=True)
class Fp16(Compressor):
    """2 bytes a number: IEEE half precision, rounded to nearest even."""

    kind: ClassVar[str] = "fp16"


@dataclass(frozen=True, slots=True)
class FixedR8(Compressor):
    """1 byte a number: 256 even steps over [-r, r). Training reads the rounded values."""

    kind: ClassVar[str] = "fixed_r8"

    r: float = 1.0
    """Half the range; larger values are clamped."""

    def __post_init__(self) -> None:
        check_number(self, "r", above=0.0)


@dataclass(frozen=True, slots=True)
class OneBit(Compressor):
    """The sign only, times ``amplitude``. Training reads ``amplitude * tanh(scale * w)`` with a growing scale."""

    kind: ClassVar[str] = "one_bit"

    step_size: int = 200
    """The scale moves at steps that this divides."""
    init_scale: float = 1.0
    """Scale at the start."""
    max_scale: float = 10000.0
    """Scale at most."""
    amplitude: float = 0.05
    """Size of every served value."""

    def __post_init__(self) -> None:
        check_whole(self, "step_size", at_least=1)
        check_number(self, "init_scale", above=0.0)
        check_number(self, "max_scale", above=0.0)
        check_number(self, "amplitude", above=0.0)
        if self.max_scale < self.init_scale:
            raise ConfigError(f"OneBit.max_scale is {self.max_scale!r}, below init_scale {self.init_scale!r}; raise it")


COMPRESSORS: Mapping[str, type[Compressor]] = {cls.kind: cls for cls in (Fp32, Fp16, FixedR8, OneBit)}
"""Every compressor class by its kind."""
