"""Quotient-remainder hashing: a large vocabulary in two small ones, whose rows are added.

An id of a vocabulary of V becomes a remainder of R = V // c + 1 and a quotient of Q = c + 1, where c is the collision
rate. The pair is different for every id, and the embedding is the sum of both rows: V rows become about V / c.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monolith.core import fid
from monolith.core.errors import ConfigError

__all__ = ["QuotientRemainder", "quotient_remainder"]

IdArray = npt.NDArray[np.int64]

_SIGNATURE = np.int64((1 << fid.V2_SIGNATURE_BITS) - 1)


@dataclass(frozen=True, slots=True)
class QuotientRemainder:
    """The split of one vocabulary.

    >>> split = QuotientRemainder(100_000_001, 4)
    >>> split.remainder_rows, split.quotient_rows
    (25000001, 5)
    """

    size: int
    """V: ids go from 0 to size - 1."""

    collision_rate: int = 4
    """c: how many ids share a remainder."""

    def __post_init__(self) -> None:
        for name, least in (("size", 1), ("collision_rate", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(f"QuotientRemainder.{name} is {value!r}; give a whole number from {least} up")

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
            raise ConfigError(f"id {plain.min()} is negative; clamp ids to 0 before they are split")
        return plain % self.remainder_rows, plain // self.remainder_rows

    def split_fids(self, fids: npt.ArrayLike) -> tuple[IdArray, IdArray]:
        """Return the fids of remainders and quotients of v2 fids, in the slots of these.

        Quotients are counted from R up, so that both may have their rows in one table.

        >>> split = QuotientRemainder(10, 4)
        >>> [part.tolist() for part in split.split_fids([(7 << 48) + 5])] == [[(7 << 48) + 2], [(7 << 48) + 3 + 1]]
        True
        """
        whole = np.asarray(fids, np.int64)
        remainders, quotients = self.split(whole & _SIGNATURE)
        slots = whole & ~_SIGNATURE
        return slots | remainders, slots | (quotients + self.remainder_rows)


def quotient_remainder(ids: npt.ArrayLike, size: int, collision_rate: int = 4) -> tuple[IdArray, IdArray]:
    """Return (``id mod R``, ``id div R``) for ids of a vocabulary of ``size``.

    >>> [int(part) for part in quotient_remainder(100_000_000, 100_000_001, 4)]
    [24999997, 3]

    Raises:
        ConfigError: An id is negative, or a setting is not positive.
    """
    return QuotientRemainder(size, collision_rate).split(ids)
