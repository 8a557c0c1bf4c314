"""Pooling of ragged bags and its gradient, bag by bag."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np
from numpy import float32 as f32
from numpy.typing import NDArray

__all__ = ["Mode", "gradients_of_occurrences", "pool_rows"]

Mode = Literal["sum", "mean"] | tuple[Literal["first"], int]
Rows = NDArray[np.float32]


def pool_rows(rows: Rows, offsets: NDArray[np.int64], mode: Mode) -> Rows:
    """Pool the rows of each bag; an empty bag gives zeros. Shapes: (N, D) and (B + 1,) to (B, D) or (B, n, D)."""
    dim = rows.shape[1]
    pooled = []
    for begin, end in pairwise(offsets.tolist()):
        bag = rows[begin:end]
        if isinstance(mode, tuple):
            first = np.zeros((mode[1], dim), f32)
            first[: len(bag)] = bag[: mode[1]]
            pooled.append(first)
            continue
        total = np.zeros(dim, f32)
        for row in bag:
            total += row
        pooled.append(total * f32(_share(mode, len(bag))))
    shape = (0, mode[1], dim) if isinstance(mode, tuple) else (0, dim)
    return np.stack(pooled) if pooled else np.zeros(shape, f32)


def gradients_of_occurrences(grads: Rows, offsets: NDArray[np.int64], mode: Mode) -> tuple[NDArray[np.int64], Rows]:
    """Return the positions of the ids that count and the gradient of each. First-n ignores all ids beyond n."""
    positions: list[int] = []
    spread: list[Rows] = []
    for bag, (begin, end) in enumerate(pairwise(offsets.tolist())):
        for place, position in enumerate(range(begin, end)):
            if not isinstance(mode, tuple):
                positions.append(position)
                spread.append(grads[bag] * f32(_share(mode, int(end - begin))))
            elif place < mode[1]:
                positions.append(position)
                spread.append(grads[bag, place])
    return np.array(positions, np.int64), np.array(spread, f32).reshape(len(positions), grads.shape[-1])


def _share(mode: Mode, length: int) -> float:
    return float(f32(1) / f32(length)) if mode == "mean" and length > 1 else 1.0
