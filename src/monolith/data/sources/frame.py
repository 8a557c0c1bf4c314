"""Data frames as a source: pandas, polars, Arrow tables, or a dict of arrays.

Neither pandas nor polars is imported: a frame is taken through the Arrow interfaces that it offers. How columns become
features is said in ``arrow_columns``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from monolith import _native
from monolith.core.errors import ConfigError, DataError, MonolithError
from monolith.data.sources.arrow_columns import Columns, LineField, TableColumns, load_pyarrow, native_columns
from monolith.data.sources.base import Position, RecordKind

__all__ = ["FrameSource"]

# Rows that are handed to the engine together. Small chunks of a frame are joined up to this many rows, no further.
_PIECE_BATCHES = 16


class FrameSource:
    """The rows of a data frame, as ExampleBatches of ``batch_rows`` rows.

    Args:
        frame: A pandas or polars frame, a pyarrow Table or RecordBatch, any object with ``__arrow_c_stream__`` or
            ``to_arrow()``, or a dict of NumPy arrays (one or two axes) and lists. The index of a pandas frame is left
            out, and its NaN are missing values.
        columns: The columns to read, with their types or without; all of them when not given.
        line_fields: All fields of LineId, when the user has extended it.
        shard: This reader's number and how many there are; each reads one stretch of the rows.
        batch_rows: Rows per record.
        name: What to call the frame in errors.

    Raises:
        ConfigError: The object is no frame, or another argument is wrong.
        SchemaMismatch: A column is missing, or holds what a feature cannot.

    >>> source = FrameSource({"user": np.array([3, 4]), "__LABEL__": [0.0, 1.0]}, columns=["user", "__LABEL__"])
    >>> len(source.read()), source.position()
    (1, {'row': 2, 'rows': 2})
    """

    def __init__(
        self,
        frame: object,
        columns: Columns = None,
        *,
        line_fields: Sequence[LineField] | None = None,
        shard: tuple[int, int] = (0, 1),
        batch_rows: int = 2048,
        name: str = "frame",
    ) -> None:
        self._batch_rows = checked_batch_rows(batch_rows)
        index, count = checked_shard(shard)
        chosen = TableColumns(columns, line_fields)
        table = _as_table(frame)
        self._choices = chosen.choose(table.schema, name)
        self._table = table.select([table.schema.get_field_index(choice.name) for choice in self._choices])
        self._name = name
        self._row = table.num_rows * index // count
        self._end = table.num_rows * (index + 1) // count
        self._first = self._row
        self._piece: list[_native.Column] = []
        self._piece_row = 0  # number of the piece's first row
        self._piece_end = 0

    @property
    def record(self) -> RecordKind:
        """Which message the records are."""
        return "example_batch"

    @property
    def is_ordered(self) -> bool:
        """Whether a position is always followed by the same records: yes."""
        return True

    def read(self) -> _native.Records | None:
        """Return the next rows as one record, or None at the end."""
        if self._row >= self._end:
            return None
        if self._row >= self._piece_end:
            self._load_piece()
        end = min(self._row + self._batch_rows, self._piece_end)
        begin = self._row - self._piece_row
        records = _native.encode_columns(self._piece, begin, end - self._piece_row, self._name, self._row)
        self._row = end
        return records

    def position(self) -> Position:
        """Return the number of the next row."""
        return {"row": self._row, "rows": self._table.num_rows}

    def resume(self, position: Position, then: Sequence[Position] = ()) -> None:
        """Go on at a row.

        Raises:
            DataError: The frame does not have as many rows as it had.
        """
        row, rows = int(position["row"]), int(position["rows"])
        if rows != self._table.num_rows:
            raise DataError(
                f"{self._name} has {self._table.num_rows} rows, and had {rows} when row {row} was noted; resume with "
                "the same frame"
            )
        if not self._first <= row <= self._end:
            raise DataError(
                f"{self._name}: row {row} is not among the rows {self._first} to {self._end} of this reader; resume "
                "with the same shard"
            )
        self._row = row
        self._piece, self._piece_end = [], 0

    def committed(self, position: Position) -> None:
        """Do nothing: a frame does not forget."""

    def close(self) -> None:
        """Let go of the frame; the source is at its end."""
        self._end = self._row
        self._piece = []

    def _load_piece(self) -> None:
        rows = min(self._batch_rows * _PIECE_BATCHES, self._end - self._row)
        batch = self._table.slice(self._row, rows).combine_chunks().to_batches()[0]
        self._piece = native_columns(batch, self._choices)
        self._piece_row, self._piece_end = self._row, self._row + batch.num_rows


def checked_batch_rows(batch_rows: int) -> int:
    """Return the rows per record, or raise ``ConfigError``."""
    if not 1 <= batch_rows <= 1 << 20:
        raise ConfigError(f"batch_rows must be between 1 and {1 << 20}, got {batch_rows}")
    return batch_rows


def checked_shard(shard: tuple[int, int]) -> tuple[int, int]:
    """Return a reader's number and how many there are, or raise ``ConfigError``."""
    index, count = shard
    if not 0 <= index < count:
        raise ConfigError(f"shard must be (index, count) with 0 <= index < count, got {shard}")
    return index, count


def _as_table(frame: Any) -> Any:
    pa = load_pyarrow()
    try:
        return _to_table(pa, frame)
    except MonolithError:
        raise
    except (pa.ArrowException, TypeError, ValueError) as exc:
        raise ConfigError(f"the {type(frame).__name__} cannot be read as a table: {exc}") from exc


def _to_table(pa: Any, frame: Any) -> Any:
    if isinstance(frame, pa.Table):
        return frame
    if isinstance(frame, pa.RecordBatch):
        return pa.Table.from_batches([frame])
    if isinstance(frame, Mapping):
        return _table_of_arrays(pa, frame)
    if hasattr(frame, "iloc") and hasattr(frame, "columns"):  # pandas: the plain stream would bring the index along
        return pa.Table.from_pandas(frame, preserve_index=False)
    if hasattr(frame, "__arrow_c_stream__"):
        return pa.table(frame)
    if hasattr(frame, "to_arrow"):
        return _to_table(pa, frame.to_arrow())
    raise ConfigError(
        f"a {type(frame).__name__} is no data frame; pass a pandas, polars or pyarrow table, or a dict of arrays"
    )


def _table_of_arrays(pa: Any, arrays: Mapping[str, Any]) -> Any:
    columns = {name: _array(pa, values) for name, values in arrays.items()}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise ConfigError(f"the columns of a dict must be equally long, got {shown}")
    return pa.table(columns)


def _array(pa: Any, values: Any) -> Any:
    if not isinstance(values, np.ndarray) or values.ndim < 2:
        return pa.array(values)
    if values.ndim > 2:
        raise ConfigError(f"an array of a dict has one or two axes, got the shape {values.shape}")
    rows, width = values.shape
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    if width == 0:
        return pa.array([[]] * rows, pa.list_(flat.type))
    return pa.FixedSizeListArray.from_arrays(flat, width)
