"""What is trained: a click model with the inputs of the Criteo logs, ids drawn from Zipf's law. The same for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from monolith.data import Batch, Ragged

__all__ = ["DENSE", "DIM", "FULL", "HIDDEN", "QUICK", "SPARSE", "Example", "Sizes", "Workload"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

SPARSE = tuple(f"c{number:02d}" for number in range(26))
DENSE = 13
DIM = 16
HIDDEN = (128, 64)
"""The tower of ``monolith.models.DeepFM`` where none is given."""
ZIPF_EXPONENT = 1.05
SEED = 20240607
BEGIN_S = 1_700_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large a run is."""

    ids: int
    """Ids in all; each feature has its equal share."""
    rounds: int
    steps: int
    """Steps of a contestant's turn, after as many that are not timed."""
    saves: int
    """Checkpoints whose pause is measured."""
    steps_between_saves: int
    """Enough for one checkpoint to be safe before the next is due."""
    batch: int = 4096
    batches: int = 32
    """Distinct batches, cycled."""
    threads: int = 2
    quick: bool = False
    profile: str | None = None
    """File for a trace of some steps; None = no trace."""

    @property
    def ids_per_feature(self) -> int:
        """Ids of one feature."""
        return self.ids // len(SPARSE)


FULL = Sizes(ids=10_000_000, rounds=9, steps=12, saves=3, steps_between_saves=200)
QUICK = Sizes(ids=520_000, rounds=3, steps=3, saves=2, steps_between_saves=15, batches=8, quick=True)


@dataclass(frozen=True, slots=True)
class Example:
    """One batch in both forms."""

    ours: Batch
    """Raw 64-bit ids, one list per feature."""
    rows: Ints
    """The same as ready-made row numbers of one matrix, (batch, features)."""
    dense: Floats
    label: Floats


class Workload:
    """The ids, batches and first values of one run."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._random = np.random.default_rng(SEED)
        count = sizes.ids_per_feature
        self._cumulative = np.cumsum(np.arange(1, count + 1, dtype=np.float64) ** -ZIPF_EXPONENT)
        self._row_of_rank = [self._random.permutation(count) for _ in SPARSE]

    def ids(self, feature: int, rows: Ints | None = None) -> Ints:
        """Return the 64-bit ids of a feature's row numbers, or of all of them: one to one, scattered."""
        numbers = np.arange(self.sizes.ids_per_feature) if rows is None else rows
        bits = (numbers + feature * self.sizes.ids_per_feature).astype(np.uint64)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (bits ^ (bits >> np.uint64(31))).view(np.int64)

    def examples(self, count: int | None = None) -> list[Example]:
        """Draw distinct batches."""
        return [self._example(number) for number in range(count or self.sizes.batches)]

    def coverage(self, number: int) -> Batch | None:
        """Return the batch ``number`` of those that show every id once; None behind the last."""
        rows = np.arange(self.sizes.ids_per_feature)[number * self.sizes.batch :][: self.sizes.batch]
        return self._example(number, [rows] * len(SPARSE)).ours if len(rows) else None

    def _example(self, number: int, columns: Sequence[Ints] | None = None) -> Example:
        if columns is None:
            columns = [self._draw(self.sizes.batch, feature) for feature in range(len(SPARSE))]
        size = len(columns[0])
        dense = self._random.lognormal(1.0, 1.5, (size, DENSE)).astype(np.float32)
        label = (self._random.random(size) < 0.25).astype(np.float32)
        bounds = np.arange(size + 1, dtype=np.int64)
        ids = {name: Ragged(self.ids(place, columns[place]), bounds) for place, name in enumerate(SPARSE)}
        times = np.full(size, BEGIN_S + number)
        batch = Batch.from_arrays(ids=ids, dense={"numbers": dense}, label=label, event_time_s=times)
        shifts = np.arange(len(SPARSE)) * self.sizes.ids_per_feature
        return Example(batch, np.stack(columns, axis=1) + shifts, dense, label)

    def _draw(self, count: int, feature: int) -> Ints:
        points = self._random.random(count) * self._cumulative[-1]
        ranks = np.searchsorted(self._cumulative, points, side="right")
        rows: Ints = self._row_of_rank[feature][ranks].astype(np.int64)
        return rows

    def first_values(self, feature: int) -> Floats:
        """Return the first rows of a feature, (ids, DIM + 1): a vector and a bias of 0."""
        random = np.random.default_rng([SEED, feature])
        rows = random.random((self.sizes.ids_per_feature, DIM + 1), np.float32) * np.float32(0.1) - np.float32(0.05)
        rows[:, DIM] = 0
        return rows
