"""``FrameSource``: reads data frames of pandas or polars, Arrow tables, or a dict of arrays.

Neither pandas nor polars is imported: frames are read through their Arrow interfaces. ``arrow_columns`` maps columns to
features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from typing_extensions import override

from monolith import _native
from monolith.core.errors import ConfigError, DataError, MonolithError
from monolith.data.sources.arrow_columns import Choice, Columns, LineField, TableColumns, load_pyarrow, native_columns
from monolith.data.sources.base import Position, RecordKind, Source
from monolith.data.sources.column_options import ColumnOptions, WantedColumns

__all__ = ["FrameSource"]

# Batches that are converted together. Small Arrow chunks of a frame are joined up to this many batches.
_PIECE_BATCHES = 16


class FrameSource(Source):
    """Reads the rows of a data frame as records of ``batch_rows`` rows.

    Args:
        frame: A pandas or polars frame, a pyarrow Table or RecordBatch, any object with ``__arrow_c_stream__`` or
            ``to_arrow()``, or a dict of NumPy arrays (one or two axes) and lists. The index of a pandas frame is
            ignored, and its NaN are missing values.
        columns: The columns to read, with or without types; default: all columns.
        line_fields: All fields of LineId, if the user has extended it.
        shard: ``(index, count)``: this reader reads one contiguous range of the rows.
        batch_rows: Rows per record.
        name: Name of the frame in errors.
        options: Columns that may be missing, that are excluded, and that hold the time.

    Raises:
        ConfigError: The object is not a data frame, or another argument is invalid.

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
        options: ColumnOptions | None = None,
    ) -> None:
        self._batch_rows = check_batch_rows(batch_rows)
        index, count = check_shard(shard)
        self._columns = TableColumns(columns, line_fields, options)
        self._table = table = _as_table(frame)
        self._choices: tuple[Choice, ...] | None = None
        self._name = name
        self._row = table.num_rows * index // count
        self._end = table.num_rows * (index + 1) // count
        self._first = self._row
        self._piece: list[_native.Column] = []
        self._piece_row = 0  # number of the piece's first row
        self._piece_end = 0
        self._is_closed = False

    @property
    @override
    def record(self) -> RecordKind:
        return "example_batch"

    @property
    @override
    def is_ordered(self) -> bool:
        return True

    @override
    def read(self) -> _native.Records | None:
        """Return the next rows as one record, or None at the end.

        Raises:
            SchemaMismatch: A column is missing, or has a type that no feature can have.
        """
        if self._is_closed or self._row >= self._end:
            return None
        if self._row >= self._piece_end:
            self._load_piece()
        end = min(self._row + self._batch_rows, self._piece_end)
        begin = self._row - self._piece_row
        records = _native.encode_columns(self._piece, begin, end - self._piece_row, self._name, self._row)
        self._row = end
        return records

    def require(self, wanted: WantedColumns) -> None:
        """Check the frame for these columns, and read no other; before the first ``read``."""
        self._columns.wanted = wanted
        self._choices = None

    @property
    def missing_columns(self) -> int:
        """Columns that the frame lacks and may lack."""
        return self._columns.missing

    @override
    def position(self) -> Position:
        """Return the number of the next row."""
        return {"row": self._row, "rows": self._table.num_rows}

    @override
    def resume(self, position: Position, then: Sequence[Position] = ()) -> None:
        """Resume at a row.

        Raises:
            DataError: The frame has another number of rows.
        """
        row, rows = int(position["row"]), int(position["rows"])
        if rows != self._table.num_rows:
            raise DataError(
                f"{self._name} has {self._table.num_rows} rows, expected {rows} as in the position; resume with the "
                "same frame"
            )
        if not self._first <= row <= self._end:
            raise DataError(
                f"{self._name}: the position is row {row}, expected {self._first} to {self._end}; resume with the "
                "same shard"
            )
        self._row = row
        self._piece, self._piece_end = [], 0

    @override
    def committed(self, position: Position) -> None:
        pass  # a frame stays

    @override
    def close(self) -> None:
        """End the source; a ``read`` in another thread still returns its rows."""
        self._is_closed = True

    def _choose(self) -> tuple[Choice, ...]:
        if self._choices is None:
            self._choices = self._columns.choose(self._table.schema, self._name)
            names = dict.fromkeys(choice.name for choice in self._choices)
            self._table = self._table.select(list(names))
        return self._choices

    def _load_piece(self) -> None:
        choices = self._choose()
        rows = min(self._batch_rows * _PIECE_BATCHES, self._end - self._row)
        batch = self._table.slice(self._row, rows).combine_chunks().to_batches()[0]
        self._piece = native_columns(batch, choices)
        self._piece_row, self._piece_end = self._row, self._row + batch.num_rows


def check_batch_rows(batch_rows: int) -> int:
    """Return ``batch_rows`` if it is valid, or raise ``ConfigError``."""
    if not 1 <= batch_rows <= 1 << 20:
        raise ConfigError(f"batch_rows is {batch_rows}, expected 1 to {1 << 20}")
    return batch_rows


def check_shard(shard: tuple[int, int]) -> tuple[int, int]:
    """Return ``(index, count)`` if it is valid, or raise ``ConfigError``."""
    index, count = shard
    if not 0 <= index < count:
        raise ConfigError(f"shard is {shard}, expected (index, count) with 0 <= index < count")
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
    if hasattr(frame, "iloc") and hasattr(frame, "columns"):  # pandas: the Arrow stream would contain the index
        return pa.Table.from_pandas(frame, preserve_index=False)
    if hasattr(frame, "__arrow_c_stream__"):
        return pa.table(frame)
    if hasattr(frame, "to_arrow"):
        return _to_table(pa, frame.to_arrow())
    raise ConfigError(
        f"frame is a {type(frame).__name__}, expected a pandas, polars or pyarrow table, or a dict of arrays"
    )


def _table_of_arrays(pa: Any, arrays: Mapping[str, Any]) -> Any:
    columns = {name: _array(pa, values) for name, values in arrays.items()}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise ConfigError(f"the columns of the dict have different lengths ({shown}), expected equal ones")
    return pa.table(columns)


def _array(pa: Any, values: Any) -> Any:
    if not isinstance(values, np.ndarray) or values.ndim < 2:
        return pa.array(values)
    if values.ndim > 2:
        raise ConfigError(f"an array of the dict has the shape {values.shape}, expected one or two axes")
    rows, width = values.shape
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    if width == 0:
        return pa.array([[]] * rows, pa.list_(flat.type))
    return pa.FixedSizeListArray.from_arrays(flat, width)
