"""Layouts and their step plans, one id at a time: the reference of ``_native.Layouts``.

The classes have the methods of the native ones and compute in double precision. Their results are exact and fix no
order of additions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["FeatureTuple", "PartTuple", "ReferenceLayouts", "ReferencePlan"]

FeatureTuple: TypeAlias = tuple[int, str, int]
"""(table, pooling, n)."""

PartTuple: TypeAlias = tuple[int, int, int, int, int, int]
"""(output, feature, column, width, offset, stride)."""

_Ids: TypeAlias = NDArray[np.int64]
_Rows: TypeAlias = NDArray[np.float32]


class _Step(NamedTuple):
    """One id's contribution to one example: a slice of its row, a slice of the output, and its share."""

    table: int
    number: int
    columns: slice
    output: int
    example: int
    floats: slice
    share: float


class ReferenceLayouts:
    """How rows of tables become the tensors of a model."""

    def __init__(
        self,
        table_dims: Sequence[int],
        features: Sequence[FeatureTuple],
        parts: Sequence[PartTuple],
        output_widths: Sequence[int],
    ) -> None:
        self.table_dims = list(table_dims)
        self.features = list(features)
        self.parts = list(parts)
        self.output_widths = list(output_widths)

    def plan(self, rows: int, values: Sequence[_Ids], offsets: Sequence[_Ids], shared: Sequence[bool]) -> ReferencePlan:
        """Number the ids of one batch."""
        numbers: list[dict[int, int]] = [{} for _ in self.table_dims]
        counts: list[list[int]] = [[] for _ in self.table_dims]
        bags: list[list[list[int]]] = []
        for (table, pooling, n), ids, ends in zip(self.features, values, offsets, strict=True):
            own: list[list[int]] = []
            for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
                kept = ids[begin:end].tolist()[: n if pooling == "first" else None]
                places = [numbers[table].setdefault(fid, len(numbers[table])) for fid in kept]
                for place in places:
                    if place == len(counts[table]):
                        counts[table].append(0)
                    counts[table][place] += 1
                own.append(places)
            bags.append(own)
        return ReferencePlan(self, rows, [list(known) for known in numbers], counts, bags, list(shared))


@dataclass(frozen=True)
class ReferencePlan:
    """The ids of one batch, numbered per table."""

    layouts: ReferenceLayouts
    rows: int
    unique: list[list[int]]
    count: list[list[int]]
    bags: list[list[list[int]]]
    shared: list[bool]

    @property
    def occurrences(self) -> int:
        """Return how many ids count, repeated ones included."""
        return sum(map(sum, self.count))

    def ids(self, table: int) -> _Ids:
        """Return the unique ids of a table in order of first occurrence."""
        return np.array(self.unique[table], np.int64)

    def counts(self, table: int) -> NDArray[np.uint32]:
        """Return how often each of ``ids(table)`` occurs."""
        return np.array(self.count[table], np.uint32)

    def pool(self, rows: Sequence[_Rows], outputs: Sequence[_Rows]) -> None:
        """Fill every output (rows, width) from the rows (unique ids, dim) of every table."""
        totals = [np.zeros(output.shape) for output in outputs]
        for step in self._steps():
            row = rows[step.table][step.number, step.columns].astype(np.float64)
            totals[step.output][step.example, step.floats] += step.share * row
        for output, total in zip(outputs, totals, strict=True):
            output[...] = total

    def scatter(self, grads: Sequence[_Rows | None], rows: Sequence[_Rows]) -> list[float]:
        """Fill the gradient of every unique id's row; return the sum of squares per table."""
        totals = [np.zeros(row.shape) for row in rows]
        for step in self._steps():
            grad = grads[step.output]
            if grad is not None:
                row = totals[step.table][step.number, step.columns]
                row += step.share * grad[step.example, step.floats].astype(np.float64)
        for out, total in zip(rows, totals, strict=True):
            out[...] = total
        return [float(np.square(total).sum()) for total in totals]

    def _steps(self) -> Iterator[_Step]:
        for output, feature, column, width, offset, stride in self.layouts.parts:
            table, pooling, _ = self.layouts.features[feature]
            for example in range(self.rows):
                bag = self.bags[feature][0 if self.shared[feature] else example]
                for i, number in enumerate(bag):
                    begin = offset + (i * stride if pooling == "first" else 0)
                    share = 1 / len(bag) if pooling == "mean" else 1.0
                    columns = slice(column, column + width)
                    yield _Step(table, number, columns, output, example, slice(begin, begin + width), share)
