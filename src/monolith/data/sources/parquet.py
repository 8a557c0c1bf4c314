"""``ParquetSource``: streams the row groups of Parquet files, with bounded memory and exact resume.

The caller expands patterns. ``arrow_columns`` maps columns to features; only that module imports pyarrow.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

from typing_extensions import override

from monolith import _native
from monolith.core.errors import ConfigError, DataError, RecordCorrupt
from monolith.data.sources.arrow_columns import (
    Choice,
    Columns,
    LineField,
    TableColumns,
    load_pyarrow,
    native_columns,
)
from monolith.data.sources.base import Position, RecordKind, Source
from monolith.data.sources.frame import check_batch_rows, check_shard

__all__ = ["OpenFile", "ParquetSource"]

# Pages are read through a buffer of this size per column, so memory never holds a whole row group.
_COLUMN_BUFFER_BYTES = 1 << 20

OpenFile = Callable[[str], BinaryIO]


class ParquetSource(Source):
    """Reads the rows of Parquet files as ExampleBatches of ``batch_rows`` rows.

    A position is a file, a row group and a row of that group. A record never spans two row groups.

    Args:
        paths: The files, in reading order.
        columns: The columns to read, with or without types; default: all columns.
        line_fields: All fields of LineId, if the user has extended it.
        shard: ``(index, count)``. With at least ``count`` files, this reader reads every ``count``-th file; else every
            ``count``-th row group of each file.
        batch_rows: Rows per record.
        open_file: Opens a file that is not local.

    Raises:
        ConfigError: An argument is invalid.
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        columns: Columns = None,
        *,
        line_fields: Sequence[LineField] | None = None,
        shard: tuple[int, int] = (0, 1),
        batch_rows: int = 2048,
        open_file: OpenFile | None = None,
    ) -> None:
        if isinstance(paths, str | bytes | os.PathLike):
            raise ConfigError(f"paths is {paths!r}, expected a list of files")
        if not paths:
            raise ConfigError("paths is empty, expected at least one Parquet file")
        load_pyarrow("pyarrow.parquet")  # a missing package is an error before the first read
        self._paths = [os.fspath(path) for path in paths]
        self._columns = TableColumns(columns, line_fields)
        self._shard, self._shards = check_shard(shard)
        self._by_file = len(self._paths) >= self._shards
        self._batch_rows = check_batch_rows(batch_rows)
        self._open_file = open_file or _open_local
        self._file_index = self._next_file(0)
        self._row_group = 0
        self._row = 0
        self._file: _ParquetFile | None = None
        self._batches: Iterator[Any] | None = None
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
            DataError: A file cannot be opened.
            RecordCorrupt: A file is not a Parquet file, or is corrupt.
            SchemaMismatch: A column is missing, or has a wrong type.
        """
        while not self._is_closed and self._file_index < len(self._paths):
            file = self._open()
            if self._row_group >= file.row_groups:
                self._leave_file()
                continue
            if not self._is_mine(self._row_group):
                self._leave_row_group()
                continue
            if self._batches is None:
                self._batches = file.batches(self._row_group, self._row, self._batch_rows)
            batch = next(self._batches, None)
            if batch is None:
                self._leave_row_group()
                continue
            columns = native_columns(batch, file.choices)
            offset = file.first_row(self._row_group) + self._row
            records = _native.encode_columns(columns, 0, batch.num_rows, file.path, offset)
            self._row += batch.num_rows
            return records
        return None

    @override
    def position(self) -> Position:
        """Return the next file, row group, and row of that group."""
        at_end = self._file_index >= len(self._paths)
        return {
            "file_index": self._file_index,
            "file": "" if at_end else self._paths[self._file_index],
            "row_group": self._row_group,
            "row": self._row,
            "rows": self._file.rows if self._file is not None else None,
        }

    @override
    def resume(self, position: Position, then: Sequence[Position] = ()) -> None:
        """Resume at a row of a file.

        Raises:
            DataError: The list has other files, or the file has another number of rows.
        """
        self._drop_file()
        self._file_index = int(position["file_index"])
        self._row_group = int(position["row_group"])
        self._row = int(position["row"])
        expected = self._paths[self._file_index] if 0 <= self._file_index < len(self._paths) else ""
        if self._file_index < 0 or expected != position["file"]:
            raise DataError(
                f"file {self._file_index} of the list is {expected!r}, expected {position['file']!r} as in the "
                "position; resume with the same files in the same order"
            )
        if expected and (self._row_group or self._row):
            self._check_position(self._open(), position["rows"])

    @override
    def committed(self, position: Position) -> None:
        pass  # files stay

    @override
    def close(self) -> None:
        """Close the open file; the source is at its end."""
        self._is_closed = True
        self._drop_file()

    def _check_position(self, file: _ParquetFile, rows: int | None) -> None:
        if rows is not None and rows != file.rows:
            raise DataError(f"{file.path} has {file.rows} rows, expected {rows} as in the position; restore the file")
        if self._row_group > file.row_groups or self._row > file.rows_of(self._row_group):
            raise DataError(f"{file.path} has no row {self._row} in row group {self._row_group}; restore the file")

    def _open(self) -> _ParquetFile:
        if self._file is None:
            self._file = _ParquetFile(self._paths[self._file_index], self._open_file, self._columns)
        return self._file

    def _is_mine(self, row_group: int) -> bool:
        return self._by_file or row_group % self._shards == self._shard

    def _next_file(self, index: int) -> int:
        """Return the index of this reader's first file at or after ``index``."""
        if not self._by_file:
            return index
        return min(index + (self._shard - index) % self._shards, len(self._paths))

    def _leave_row_group(self) -> None:
        self._row_group += 1
        self._row = 0
        self._batches = None

    def _leave_file(self) -> None:
        self._drop_file()
        self._file_index = self._next_file(self._file_index + 1)
        self._row_group = self._row = 0

    def _drop_file(self) -> None:
        self._batches = None
        if self._file is not None:
            self._file.close()
            self._file = None


class _ParquetFile:
    """One open file and the columns chosen from it."""

    def __init__(self, path: str, open_file: OpenFile, columns: TableColumns) -> None:
        self.path = path
        self._arrow = load_pyarrow()
        try:
            self._handle = open_file(path)
        except OSError as exc:
            raise DataError(f"{path} cannot be opened ({exc})") from exc
        try:
            self._parquet = load_pyarrow("pyarrow.parquet").ParquetFile(
                self._handle, buffer_size=_COLUMN_BUFFER_BYTES, pre_buffer=False
            )
            schema = self._parquet.schema_arrow
            self.choices: tuple[Choice, ...] = columns.choose(schema, path)
        except (self._arrow.ArrowException, OSError) as exc:
            self._handle.close()
            raise RecordCorrupt(f"{path}: not a Parquet file, or corrupt ({exc})") from exc
        except BaseException:
            self._handle.close()
            raise
        metadata = self._parquet.metadata
        self.rows: int = metadata.num_rows
        self.row_groups: int = metadata.num_row_groups
        self._group_rows = [metadata.row_group(group).num_rows for group in range(self.row_groups)]

    def rows_of(self, row_group: int) -> int:
        return self._group_rows[row_group] if row_group < self.row_groups else 0

    def first_row(self, row_group: int) -> int:
        return sum(self._group_rows[:row_group])

    def batches(self, row_group: int, skip: int, batch_rows: int) -> Iterator[Any]:
        """Yield the rows of a row group from row ``skip`` on, in batches."""
        names = [choice.name for choice in self.choices]
        row = 0
        try:
            for batch in self._parquet.iter_batches(batch_rows, row_groups=[row_group], columns=names):
                begin = min(max(skip - row, 0), batch.num_rows)
                row += batch.num_rows
                if begin < batch.num_rows:
                    yield batch.slice(begin)
        except (self._arrow.ArrowException, OSError) as exc:
            raise RecordCorrupt(f"{self.path}: row group {row_group}, after row {row}: {exc}") from exc
        if row != self.rows_of(row_group):
            raise RecordCorrupt(
                f"{self.path}: row group {row_group} has {row} rows, its header has {self.rows_of(row_group)}"
            )

    def close(self) -> None:
        self._parquet.close(force=True)
        self._handle.close()


def _open_local(path: str) -> BinaryIO:
    return open(path, "rb")
