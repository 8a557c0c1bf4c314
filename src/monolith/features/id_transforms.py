"""Declared transforms of ids: they place the ids of a feature in a vocabulary of a fixed size.

``IdTransform`` belongs to one feature of a ``Declaration``. The native plan of a batch applies it to each id before the
lookup, so training, evaluation, prediction and serving all apply it. Records, requests and ``Batch.ids`` keep the
original ids. ``QuotientRemainder`` has the arithmetic of a vocabulary that two features split. All types are
immutable, and this module does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from monolith.core.errors import ConfigError

__all__ = ["IdTransform", "QuotientRemainder", "SplitPart"]

IdArray = npt.NDArray[np.int64]
SplitPart: TypeAlias = Literal["whole", "remainder", "quotient"]

_LARGEST = 1 << 47


@dataclass(frozen=True, slots=True)
class QuotientRemainder:
    """Split of one vocabulary into two small ones, whose rows the model adds.

    An id of a vocabulary of V becomes a remainder below R = V // c + 1 and a quotient below Q = c + 1, where c is the
    collision rate. The pair is different for every id, and V rows become about V / c.

    >>> split = QuotientRemainder(100_000_001, 4)
    >>> split.remainder_rows, split.quotient_rows
    (25000001, 5)
    """

    size: int
    """V: ids go from 0 to size - 1."""

    collision_rate: int = 4
    """c: number of ids that share a remainder."""

    def __post_init__(self) -> None:
        for name in ("size", "collision_rate"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= _LARGEST:
                raise ConfigError(
                    f"QuotientRemainder.{name} is {value!r}, expected a whole number from 1 to 2^47; change it"
                )

    @property
    def remainder_rows(self) -> int:
        """R."""
        return self.size // self.collision_rate + 1

    @property
    def quotient_rows(self) -> int:
        """Q."""
        return self.collision_rate + 1

    def split(self, ids: npt.ArrayLike) -> tuple[IdArray, IdArray]:
        """Return (remainders, quotients) of ids, which are plain numbers.

        Raises:
            ConfigError: An id is negative.
        """
        plain = np.asarray(ids, np.int64)
        if plain.size and plain.min() < 0:
            raise ConfigError(f"id is {plain.min()}, expected 0 or more; clamp ids to 0 before they are split")
        return plain % self.remainder_rows, plain // self.remainder_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class IdTransform:
    """Place of each id of a feature in a vocabulary; the slot of the id stays.

    The transform reads the signature of a v2 id, its low 48 bits:

    1. With ``size``, the signature becomes ``signature mod size``. Without, the signature is a signed place in a
       vocabulary, and a negative place, which means unknown, becomes 0.
    2. ``part`` takes the remainder by ``divisor``, or the quotient plus ``divisor``. Remainders and quotients do not
       overlap, so two features can share one table.

    >>> IdTransform(size=10).apply([3, 13, 27]).tolist()
    [3, 3, 7]
    >>> IdTransform.of_split(QuotientRemainder(10, 4), "quotient").apply([5]).tolist()  # R = 3
    [4]
    """

    size: int | None = None
    """Size of the vocabulary; None = the signature is a place already."""

    divisor: int | None = None
    """Number of remainders; None = the vocabulary is not split."""

    part: SplitPart = "whole"
    """The half of a split vocabulary that this feature reads."""

    def __post_init__(self) -> None:
        for name in ("size", "divisor"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 1 <= value <= _LARGEST):
                raise ConfigError(
                    f"IdTransform.{name} is {value!r}, expected a whole number from 1 to 2^47, or None; change it"
                )
        if self.part not in ("whole", "remainder", "quotient"):
            raise ConfigError(f"IdTransform.part is {self.part!r}, expected 'whole', 'remainder' or 'quotient'")
        if (self.divisor is None) != (self.part == "whole"):
            raise ConfigError(
                f"IdTransform.divisor is {self.divisor!r} with part {self.part!r}, expected a divisor for 'remainder' "
                "and 'quotient' only; give both, or neither"
            )

    @classmethod
    def of_split(cls, split: QuotientRemainder, part: SplitPart, *, size: int | None = None) -> IdTransform:
        """Return the transform of one part of a split vocabulary; ``size`` brings ids into the vocabulary first."""
        return cls(size=size, divisor=split.remainder_rows, part=part)

    def apply(self, ids: npt.ArrayLike) -> IdArray:
        """Return the transformed ids, as the native plan computes them. For tests and tools."""
        whole = np.asarray(ids, np.int64)
        mask = np.int64((1 << 48) - 1)
        places = np.maximum(whole << 16 >> 16, 0) if self.size is None else (whole & mask) % self.size
        if self.divisor is not None:
            places = places % self.divisor if self.part == "remainder" else self.divisor + places // self.divisor
        return (whole & ~mask) | places

    def native(self) -> tuple[int, int, bool]:
        """Return (size, divisor, is_quotient), as the native layouts take them; 0 = None."""
        return self.size or 0, self.divisor or 0, self.part == "quotient"
