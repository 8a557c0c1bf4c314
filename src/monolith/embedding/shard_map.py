"""The shard of an id, and the division of a call's ids among shards.

One rule for servers, checkpoints, exports, entry dumps and synchronous ranks: ``uint64(id) mod shards``. The C++ data
plane implements the same rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monolith.core.errors import ConfigError

__all__ = ["Division", "deduplicate", "divide", "shard_of", "shard_of_id"]

Ids = NDArray[np.int64]


def shard_of(ids: ArrayLike, shards: int) -> NDArray[np.int64]:
    """Return the shard of each id.

    >>> shard_of([0, 1, 5, -1], 3).tolist()
    [0, 1, 2, 0]
    """
    if shards < 1:
        raise ConfigError(f"shards is {shards}; give at least 1")
    numbers = np.ascontiguousarray(ids, np.int64).view(np.uint64)
    return (numbers % np.uint64(shards)).astype(np.int64)


def shard_of_id(id: int, shards: int) -> int:
    """Return the shard of one id, signed or unsigned.

    >>> shard_of_id(-1, 3) == shard_of_id(2**64 - 1, 3) == 0
    True
    """
    return id % 2**64 % shards


@dataclass(frozen=True, slots=True)
class Division:
    """Ids of one table, divided among the shards."""

    parts: tuple[Ids, ...]
    """Ids of each shard, in the caller's order."""
    places: tuple[NDArray[np.intp], ...]
    """Their positions in the caller's order."""


def divide(ids: Ids, shards: int) -> Division:
    """Divide ids among the shards.

    >>> [part.tolist() for part in divide(np.arange(8), 3).parts]
    [[0, 3, 6], [1, 4, 7], [2, 5]]
    """
    if shards == 1:
        return Division((ids,), (np.arange(len(ids)),))
    owners = shard_of(ids, shards)
    order = np.argsort(owners, kind="stable")
    bounds = np.searchsorted(owners[order], np.arange(1, shards))
    places = tuple(np.split(order, bounds))
    return Division(tuple(ids[place] for place in places), places)


def deduplicate(ids: Ids) -> tuple[Ids, NDArray[np.intp]]:
    """Return the distinct ids in the order first seen, and the index of each input id among them.

    >>> unique, positions = deduplicate(np.array([1, 2, 1, 3, 2, 1]))
    >>> unique.tolist(), positions.tolist()
    ([1, 2, 3], [0, 1, 0, 2, 1, 0])
    """
    unique, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return unique[order], rank[inverse]
