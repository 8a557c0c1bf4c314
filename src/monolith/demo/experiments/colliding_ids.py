"""Ids that collide: hashed into a table so small that a given share of them meets another one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Collisions", "collide"]

Ints = NDArray[np.int64]

CANDIDATES = 400
"""Table sizes tried around the one that has this share on average."""


@dataclass(frozen=True, slots=True)
class Collisions:
    """New ids of all ids, and how many of them meet another one."""

    ids: Ints
    """The new id of each old one."""
    table_size: int
    share: float
    """Ids that share their new id with another, of all ids."""


def collide(count: int, share: float) -> Collisions:
    """Hash the ids 0 to ``count`` so that as near to ``share`` of them as possible collide; the same on every run."""
    expected = count / -np.log1p(-share)
    sizes = np.linspace(0.8 * expected, 1.2 * expected, CANDIDATES).astype(np.int64)
    found = [_hashed(count, int(size)) for size in sizes]
    return min(found, key=lambda each: abs(each.share - share))


def _hashed(count: int, size: int) -> Collisions:
    bits = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    ids = ((bits ^ (bits >> np.uint64(31))) % np.uint64(size)).astype(np.int64)
    _, place, occurrences = np.unique(ids, return_inverse=True, return_counts=True)
    return Collisions(ids, size, float(np.mean(occurrences[place] > 1)))
