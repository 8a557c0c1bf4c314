"""What is looked up and pushed: distinct ids of one table, drawn uniformly. The same for all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from monolith.embedding import Adagrad, SliceSpec, TableSpec

__all__ = ["DIM", "FULL", "QUICK", "TABLE", "Sizes", "Workload"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

DIM = 16
TABLE = TableSpec("rows", [SliceSpec(DIM, optimizer=Adagrad(0.01))])
SEED = 20240607
BEGIN_S = 1_700_000_000
_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large a run is."""

    rows: int
    """Rows of the table."""
    rounds: int
    steps: int
    """Calls of a contestant's turn, after one that is not timed."""
    starts: int
    """Servers that are started, one after the other."""
    recoveries: int
    """Servers that take the rows from a snapshot, one after the other."""
    train_ids: int
    """Ids of the model that is trained."""
    train_rounds: int
    train_steps: int
    """Steps of a side's turn, after as many that are not timed."""
    train_batch: int = 4096
    train_batches: int = 32
    ids: int = 65_536
    """Ids of a call."""
    calls: int = 16
    """Distinct calls, cycled."""
    threads: int = 2
    quick: bool = False


FULL = Sizes(
    rows=10_000_000, rounds=11, steps=6, starts=5, recoveries=3, train_ids=10_000_000, train_rounds=7, train_steps=12
)
QUICK = Sizes(
    rows=2_000_000,
    rounds=5,
    steps=4,
    starts=3,
    recoveries=1,
    train_ids=520_000,
    train_rounds=3,
    train_steps=4,
    train_batches=8,
    quick=True,
)


class Workload:
    """The ids, first values, calls and gradients of one run."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        random = np.random.default_rng(SEED)
        self.calls = [self.ids(random.choice(sizes.rows, sizes.ids, replace=False)) for _ in range(sizes.calls)]
        self.gradients = [
            random.standard_normal((sizes.ids, DIM), np.float32) * np.float32(0.01) for _ in range(min(4, sizes.calls))
        ]

    @staticmethod
    def ids(numbers: Ints) -> Ints:
        """Return the 64-bit ids of row numbers: one to one, scattered."""
        bits = numbers.astype(np.uint64)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (bits ^ (bits >> np.uint64(31))).view(np.int64)

    def first_rows(self) -> Iterator[tuple[Ints, Floats]]:
        """Yield all ids with their first values, piece by piece."""
        random = np.random.default_rng([SEED, 1])
        for begin in range(0, self.sizes.rows, _CHUNK):
            numbers = np.arange(begin, min(begin + _CHUNK, self.sizes.rows))
            yield self.ids(numbers), random.random((len(numbers), DIM), np.float32) - np.float32(0.5)

    def call(self, number: int) -> Ints:
        """Return the ids of call ``number``."""
        return self.calls[number % len(self.calls)]

    def gradient(self, number: int) -> Floats:
        """Return what call ``number`` pushes."""
        return self.gradients[number % len(self.gradients)]
