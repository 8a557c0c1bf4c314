"""``TableFilesSource``: reads the rows of files of columns, one file after the other, with exact resume.

A ``TableFormat`` opens one file as a ``TableFile``, which knows its rows, its share of them and its position. This
module knows the list of files. ``arrow_columns`` maps columns to features.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeAlias

from typing_extensions import override

from monolith import _native
from monolith.core.errors import ConfigError, DataError
from monolith.core.storage import open_file as open_path
from monolith.data.sources.arrow_columns import Columns, LineField, TableColumns, load_pyarrow
from monolith.data.sources.base import Position, RecordKind, Source
from monolith.data.sources.column_options import ColumnOptions, WantedColumns
from monolith.data.sources.frame import check_batch_rows, check_shard

__all__ = ["OpenFile", "TableFile", "TableRows", "TableFilesSource", "TableFormat", "open_table_file"]

OpenFile: TypeAlias = Callable[[str], BinaryIO]
"""Opens a file by its path or URL."""


class TableRows(NamedTuple):
    """Rows of a file: a range of rows of columns in memory."""

    columns: Sequence[_native.Column]
    begin: int
    end: int
    first_row: int
    """Number of row ``begin`` in the file."""


class TableFile(Protocol):
    """One open file: the rows of one shard, in batches. Used by one thread."""

    @property
    def size(self) -> int:
        """Rows or bytes of the file; a file of another size is another file."""

    @property
    def unit(self) -> str:
        """The unit of ``size``: rows or bytes."""

    def read(self) -> TableRows | None:
        """Return the next rows; None at the end.

        Raises:
            RecordCorrupt: The file is corrupt; the text names the file and the place.
        """

    def position(self) -> dict[str, int]:
        """Return the position behind the last batch."""

    def seek(self, position: Mapping[str, Any]) -> None:
        """Go to a position, before the first ``read``.

        Raises:
            DataError: The file has no such position.
        """

    def close(self) -> None:
        """Close the file."""


class TableFormat(Protocol):
    """Opens files of one format."""

    def open(self, path: str, columns: TableColumns, *, batch_rows: int, shard: tuple[int, int]) -> TableFile:
        """Open one file.

        Args:
            path: The file.
            columns: Chooses the columns.
            batch_rows: Rows of a batch, at most.
            shard: (index, count): the share of the rows of this file.

        Raises:
            DataError: The file cannot be opened.
            RecordCorrupt: The file is of another format, or corrupt.
            SchemaMismatch: A column is missing, or has a wrong type.
        """


def open_table_file(path: str, open_file: OpenFile | None = None) -> BinaryIO:
    """Open a file of columns.

    Raises:
        DataError: The file cannot be opened.
    """
    try:
        return (open_file or open_path)(path)
    except OSError as error:
        raise DataError(f"{path} cannot be opened ({error})") from error


class TableFilesSource(Source):
    """Reads the rows of files of columns as records of at most ``batch_rows`` rows.

    Args:
        paths: The files, in reading order.
        table_format: Opens the files.
        columns: The columns to read, with or without types; default: all columns.
        line_fields: All fields of LineId, if the user has extended it.
        shard: ``(index, count)``. With at least ``count`` files, this reader reads every ``count``-th file; else its
            share of the rows of each file.
        batch_rows: Rows per record.
        options: Columns that may be missing, that are excluded, and that hold the time.

    Raises:
        ConfigError: An argument is invalid.
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        table_format: TableFormat,
        columns: Columns = None,
        *,
        line_fields: Sequence[LineField] | None = None,
        shard: tuple[int, int] = (0, 1),
        batch_rows: int = 2048,
        options: ColumnOptions | None = None,
    ) -> None:
        if isinstance(paths, str | bytes | os.PathLike):
            raise ConfigError(f"paths is {paths!r}, expected a list of files")
        if not paths:
            raise ConfigError("paths is empty, expected at least one file")
        load_pyarrow()  # a missing package is an error before the first read
        self._paths = [os.fspath(path) for path in paths]
        self._format = table_format
        self._columns = TableColumns(columns, line_fields, options)
        self._shard, self._shards = check_shard(shard)
        self._by_file = len(self._paths) >= self._shards
        self._batch_rows = check_batch_rows(batch_rows)
        self._file_index = self._next_file(0)
        self._file: TableFile | None = None
        self._lock = threading.Lock()  # of the open file: another thread may call ``close``
        self._is_closed = False
        self._closed_at: Position | None = None

    @property
    @override
    def record(self) -> RecordKind:
        return "example_batch"

    @property
    @override
    def is_ordered(self) -> bool:
        return True

    def require(self, wanted: WantedColumns) -> None:
        """Check every file for these columns, and read no other; before the first ``read``."""
        self._columns.wanted = wanted

    @property
    def missing_columns(self) -> int:
        """Columns that files lack and may lack, summed over the files read."""
        return self._columns.missing

    @override
    def read(self) -> _native.Records | None:
        """Return the next rows as one record, or None at the end.

        Raises:
            DataError: A file cannot be opened.
            RecordCorrupt: A file is of another format, or corrupt.
            SchemaMismatch: A column is missing, or has a wrong type.
        """
        with self._lock:
            while not self._is_closed and self._file_index < len(self._paths):
                file = self._open()
                rows = file.read()
                if rows is None:
                    self._drop_file()
                    self._file_index = self._next_file(self._file_index + 1)
                    continue
                return _native.encode_columns(
                    rows.columns, rows.begin, rows.end, self._paths[self._file_index], rows.first_row
                )
        return None

    @override
    def position(self) -> Position:
        """Return the next file, and the position in it; ``close`` does not change them."""
        with self._lock:
            return self._place() if self._closed_at is None else self._closed_at

    def _place(self) -> Position:
        at_end = self._file_index >= len(self._paths)
        inner = {"rows": None} if self._file is None else {"rows": self._file.size, **self._file.position()}
        return {
            "file_index": self._file_index,
            "file": "" if at_end else self._paths[self._file_index],
            **inner,
        }

    @override
    def resume(self, position: Position, then: Sequence[Position] = ()) -> None:
        """Resume at a row of a file.

        Raises:
            DataError: The list has other files, or the file has another size.
        """
        self._drop_file()
        self._file_index = int(position["file_index"])
        expected = self._paths[self._file_index] if 0 <= self._file_index < len(self._paths) else ""
        if self._file_index < 0 or expected != position["file"]:
            raise DataError(
                f"file {self._file_index} of the list is {expected!r}, expected {position['file']!r} as in the "
                "position; resume with the same files in the same order"
            )
        if not expected or position["rows"] is None:
            return
        file = self._open()
        if file.size != position["rows"]:
            raise DataError(
                f"{expected} has {file.size} {file.unit}, expected {position['rows']} as in the position; "
                "restore the file"
            )
        file.seek(position)

    @override
    def committed(self, position: Position) -> None:
        pass  # files stay

    @override
    def close(self) -> None:
        """Wait for a ``read`` in another thread, and close the open file; the next ``read`` returns None."""
        self._is_closed = True
        with self._lock:
            if self._closed_at is None:
                self._closed_at = self._place()
            self._drop_file()

    def _open(self) -> TableFile:
        if self._file is None:
            shard = (0, 1) if self._by_file else (self._shard, self._shards)
            self._file = self._format.open(
                self._paths[self._file_index], self._columns, batch_rows=self._batch_rows, shard=shard
            )
        return self._file

    def _next_file(self, index: int) -> int:
        """Return the index of this reader's first file at or after ``index``."""
        if not self._by_file:
            return index
        return min(index + (self._shard - index) % self._shards, len(self._paths))

    def _drop_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
