"""``RowCounts``: counts the rows in and out of each step of a dataset, over all its epochs.

An ended epoch leaves its counts only, not its native objects, so that an endlessly repeated dataset does not grow.
"""

from __future__ import annotations

from dataclasses import dataclass

from monolith import _native
from monolith.data.sources.column_options import ColumnSource

__all__ = ["RowCounts"]


@dataclass(slots=True)
class _Step:
    """One step of the current epoch; ``come`` and ``gone`` are the counts of earlier epochs."""

    name: str
    native: _native.RowParser | _native.RowOp
    come: int = 0
    gone: int = 0

    def totals(self) -> tuple[int, int]:
        """Return the rows in and out; for a parser, the rows read and the corrupt records."""
        if isinstance(self.native, _native.RowParser):
            return self.come + self.native.next_row, self.gone + self.native.corrupt_records
        return self.come + self.native.rows_in, self.gone + self.native.rows_out


class RowCounts:
    """The counts of one iteration. Its steps are opened in the same order in every epoch."""

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self._next = 0
        self._sources: list[ColumnSource] = []
        self._missing_columns = 0

    @property
    def place(self) -> int:
        """The index of the next step to be added."""
        return self._next

    def go_to(self, place: int) -> None:
        """Start another epoch: the next steps replace those of the previous epoch, from index ``place`` on."""
        self._next = place
        self._missing_columns = self._sum_missing()
        self._sources.clear()

    def add_source(self, source: ColumnSource) -> None:
        """Add a source of tables."""
        self._sources.append(source)

    def _sum_missing(self) -> int:
        return self._missing_columns + sum(source.missing_columns for source in self._sources)

    def add(self, name: str, native: _native.RowParser | _native.RowOp) -> None:
        """Add a step, in place of the same step of an earlier epoch if there was one."""
        if self._next == len(self._steps):
            self._steps.append(_Step(name, native))
        else:
            self._steps[self._next] = _Step(name, native, *self._steps[self._next].totals())
        self._next += 1

    @property
    def operations(self) -> list[_native.RowOp]:
        """The operations of the current epoch, in order."""
        return [step.native for step in self._steps if isinstance(step.native, _native.RowOp)]

    def as_dict(self) -> dict[str, int]:
        """Return all counts by name."""
        parsers = [step.totals() for step in self._steps if isinstance(step.native, _native.RowParser)]
        operations = [step for step in self._steps if isinstance(step.native, _native.RowOp)]
        counts = {
            "rows_read": sum(rows for rows, _ in parsers),
            "corrupt_records": sum(corrupt for _, corrupt in parsers),
        }
        if missing := self._sum_missing():
            counts["missing_columns"] = missing
        for number, step in enumerate(operations):
            counts[f"{number}.{step.name}.rows_in"], counts[f"{number}.{step.name}.rows_out"] = step.totals()
        return counts
