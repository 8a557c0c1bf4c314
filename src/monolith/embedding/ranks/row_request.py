"""The rows that one rank requests from all ranks in a step: division of the ids, and reassembly of the answers.

Plain arrays: blocks of ids, rank by rank and table by table within a rank. The caller sends them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from monolith import _native
from monolith.embedding.shard_map import Division, divide
from monolith.embedding.store import Ids, Rows

__all__ = ["RowRequest", "SummedRows", "blocks_of", "sum_blocks"]

Numbers = NDArray[np.int64]
_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True)
class RowRequest:
    """The ids of all tables, divided among the ranks by the one shard function."""

    divisions: tuple[Division, ...]
    """Per table."""
    sizes: Numbers
    """(ranks, tables): ids in each block."""

    @classmethod
    def of(cls, ids: Sequence[Ids], ranks: int) -> RowRequest:
        """Divide the ids of each table, which are unique.

        >>> RowRequest.of([np.array([5, 2, 4]), np.array([3])], 2).sizes.tolist()
        [[2, 0], [1, 1]]
        """
        divisions = tuple(divide(each, ranks) for each in ids)
        sizes = [[len(division.parts[rank]) for division in divisions] for rank in range(ranks)]
        return cls(divisions, np.array(sizes, np.int64).reshape(ranks, len(divisions)))

    def ids(self) -> Ids:
        """Return all ids, flat, block by block."""
        ranks = len(self.sizes)
        return np.concatenate([division.parts[rank] for rank in range(ranks) for division in self.divisions])

    def arranged(self, arrays: Sequence[NDArray[_Scalar]]) -> NDArray[_Scalar]:
        """Return one array per table, with one row per id, flat in the order of ``ids``."""
        ranks = len(self.sizes)
        return np.concatenate(
            [
                array[division.places[rank]].ravel()
                for rank in range(ranks)
                for division, array in zip(self.divisions, arrays, strict=True)
            ]
        )

    def rows(self, flat: NDArray[np.float32], dims: Sequence[int]) -> list[Rows]:
        """Return the rows of each table in the order of the requested ids, from the flat answer."""
        tables = [
            np.empty((sum(len(part) for part in division.parts), dim), np.float32)
            for division, dim in zip(self.divisions, dims, strict=True)
        ]
        for rank, blocks in enumerate(blocks_of(flat, self.sizes, dims)):
            for division, rows, block in zip(self.divisions, tables, blocks, strict=True):
                rows[division.places[rank]] = block
        return tables


def blocks_of(flat: NDArray[_Scalar], sizes: Numbers, dims: Sequence[int]) -> list[list[NDArray[_Scalar]]]:
    """Cut flat rows into those of each rank and table.

    >>> [[block.tolist() for block in blocks] for blocks in blocks_of(np.arange(4), np.array([[1, 1], [0, 1]]), [2, 1])]
    [[[[0, 1]], [[2]]], [[], [[3]]]]
    """
    ends = np.cumsum(sizes * np.asarray(dims, np.int64)).reshape(sizes.shape)
    return [
        [
            flat[ends[rank, table] - sizes[rank, table] * dim : ends[rank, table]].reshape(-1, dim)
            for table, dim in enumerate(dims)
        ]
        for rank in range(len(sizes))
    ]


@dataclass(frozen=True, slots=True, eq=False)
class SummedRows:
    """The gradients of one table's rows of this rank, each id once."""

    ids: Ids
    grads: Rows
    counts: NDArray[np.uint32]


def sum_blocks(ids: Sequence[Ids], grads: Sequence[Rows], counts: Sequence[Numbers]) -> SummedRows:
    """Sum the gradients of several ranks for one table, in rank order; the ids of one rank are unique.

    >>> ids, grads = [np.array([7, 8]), np.array([8])], [np.ones((2, 1), np.float32), np.ones((1, 1), np.float32)]
    >>> summed = sum_blocks(ids, grads, [np.array([1, 1]), np.array([3])])
    >>> summed.ids.tolist(), summed.grads.tolist(), summed.counts.tolist()
    ([7, 8], [[1.0], [2.0]], [1, 4])
    """
    unique, numbers = _native.unique_ids(np.concatenate(ids))
    total = np.empty((len(unique), grads[0].shape[1]), np.float32)
    sightings = np.zeros(len(unique), np.int64)
    begin = seen = 0
    for block_ids, block_grads, block_counts in zip(ids, grads, counts, strict=True):
        rows = numbers[begin : begin + len(block_ids)]
        begin += len(block_ids)
        # New ids have the next numbers, in order: their rows are copied, so that a zero keeps its sign.
        is_new = rows >= seen
        new = int(is_new.sum())
        total[seen : seen + new] = block_grads[is_new]
        total[rows[~is_new]] += block_grads[~is_new]
        sightings[rows] += block_counts
        seen += new
    return SummedRows(unique, total, np.minimum(sightings, np.iinfo(np.uint32).max).astype(np.uint32))
