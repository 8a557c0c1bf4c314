"""Which server an id belongs to, and how the ids of a call are divided and put together again.

The one rule, for servers, checkpoints and synchronous ranks alike: ``uint64(id) mod shards``. The data plane's C++ has
a twin of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monolith.core.errors import ConfigError

__all__ = ["Division", "deduplicate", "divide", "shard_of"]

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


@dataclass(frozen=True, slots=True)
class Division:
    """The ids of one table, divided among the shards."""

    parts: tuple[Ids, ...]
    """Ids of each shard, in the caller's order."""
    places: tuple[NDArray[np.intp], ...]
    """Where in the caller's order they are."""


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
    """Return the different ids in the order first seen, and for each position which of them it is.

    >>> unique, positions = deduplicate(np.array([1, 2, 1, 3, 2, 1]))
    >>> unique.tolist(), positions.tolist()
    ([1, 2, 3], [0, 1, 0, 2, 1, 0])
    """
    unique, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return unique[order], rank[inverse]
