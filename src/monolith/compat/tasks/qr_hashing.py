"""``quotient_remainder``: the original's function for quotient-remainder hashing.

A model declares a split vocabulary by ``Model.split_feature``; ``QuotientRemainder`` has the arithmetic.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from monolith.features import QuotientRemainder

__all__ = ["quotient_remainder"]


def quotient_remainder(
    ids: npt.ArrayLike, size: int, collision_rate: int = 4
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return (``id mod R``, ``id div R``) for ids of a vocabulary of ``size``.

    >>> [int(part) for part in quotient_remainder(100_000_000, 100_000_001, 4)]
    [24999997, 3]

    Raises:
        ConfigError: An id is negative, or a setting is not positive.
    """
    return QuotientRemainder(size, collision_rate).split(ids)
