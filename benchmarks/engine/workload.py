"""What is measured: how many rows, which ids in which order, which gradients. The same for every contestant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["FULL", "QUICK", "Batch", "Distribution", "Ids", "Rows", "Sizes", "Workload", "scatter"]

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]

ZIPF_EXPONENT = 1.05
SEED = 20240607


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large a run is."""

    rows: int
    snapshot_rows: int
    matrix_rows: int
    rounds: int
    """Interleaved rounds of a case; the median of their ratios is reported."""
    huge_page_rounds: int
    """Rounds after the peer's memory was turned into huge pages; 0 = do not measure that."""
    fills: int
    """Times a whole table is filled."""
    disk_rounds: int
    steps: int = 3
    """Timed steps of a contestant's turn, after one that is not timed."""
    batches: int = 16
    """Distinct batches, cycled."""
    dim: int = 16
    ids_per_step: int = 262_144
    bag: int = 16
    threads: int = 2
    quick: bool = False


FULL = Sizes(
    rows=20_000_000,
    snapshot_rows=10_000_000,
    matrix_rows=2_000_000,
    rounds=11,
    huge_page_rounds=11,
    fills=3,
    disk_rounds=5,
)
QUICK = Sizes(
    rows=2_000_000,
    snapshot_rows=1_000_000,
    matrix_rows=200_000,
    rounds=4,
    huge_page_rounds=0,
    fills=1,
    disk_rounds=3,
    steps=2,
    batches=8,
    quick=True,
)


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's ids in both forms, in equal bags."""

    ids: Ids
    """Scattered 64-bit ids, for a table that looks them up."""
    rows: Ids
    """The same as ready-made row numbers, for a table that does not."""


def scatter(rows: Ids) -> Ids:
    """Map row numbers to 64-bit ids, one to one (the finalizer of splitmix64)."""
    bits = rows.astype(np.uint64)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (bits ^ (bits >> np.uint64(31))).view(np.int64)


class Distribution:
    """Draws row numbers: "zipf" (bounded, over all rows, hot rows scattered) or "uniform"."""

    def __init__(self, kind: str, rows: int) -> None:
        self.kind = kind
        self.rows = rows
        self._random = np.random.default_rng([SEED, rows, len(kind)])
        if kind == "zipf":
            weights = np.arange(1, rows + 1, dtype=np.float64) ** -ZIPF_EXPONENT
            self._cumulative = np.cumsum(weights)
            self._row_of_rank = self._random.permutation(rows)

    def draw(self, count: int) -> Ids:
        """Return ``count`` row numbers."""
        if self.kind == "uniform":
            return self._random.integers(0, self.rows, count, dtype=np.int64)
        points = self._random.random(count) * self._cumulative[-1]
        ranks = np.searchsorted(self._cumulative, points, side="right")
        rows: Ids = self._row_of_rank[ranks].astype(np.int64)
        return rows


class Workload:
    """The batches, gradients and first values of one run."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.bags = sizes.ids_per_step // sizes.bag
        self.offsets = np.arange(0, sizes.ids_per_step + 1, sizes.bag, dtype=np.int64)

    def batches(self, kind: str, count: int | None = None, rows: int | None = None) -> list[Batch]:
        """Return distinct batches of the distribution ``kind`` over the first ``rows`` rows."""
        source = Distribution(kind, rows or self.sizes.rows)
        drawn = [source.draw(self.sizes.ids_per_step) for _ in range(count or self.sizes.batches)]
        return [Batch(scatter(numbers), numbers) for numbers in drawn]

    def gradients(self, dim: int | None = None) -> Rows:
        """Return the gradient of the pooled rows, (bags, dim)."""
        random = np.random.default_rng(SEED + 1)
        return random.standard_normal((self.bags, dim or self.sizes.dim), dtype=np.float32) * np.float32(0.01)

    def first_values(self, rows: int | None = None, dim: int | None = None) -> Iterator[tuple[Ids, Rows]]:
        """Yield (row numbers, values) that fill a table, one batch's worth at a time."""
        random = np.random.default_rng(SEED + 2)
        total, size = rows or self.sizes.rows, self.sizes.ids_per_step
        for start in range(0, total, size):
            numbers = np.arange(start, min(start + size, total), dtype=np.int64)
            yield numbers, random.random((len(numbers), dim or self.sizes.dim), dtype=np.float32) - np.float32(0.5)
