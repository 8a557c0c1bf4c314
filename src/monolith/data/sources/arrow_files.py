"""``ArrowFormat``: Arrow IPC files (Feather version 2) and IPC streams, with exact resume.

A position is a record batch and a row of it. Readers that share a file read a range of rows of each record batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from monolith.core import storage
from monolith.core.errors import DataError, RecordCorrupt
from monolith.data.sources.arrow_columns import TableColumns, load_pyarrow, native_columns
from monolith.data.sources.table_files import OpenFile, TableFile, TableFormat, TableRows, open_table_file

__all__ = ["ArrowFormat"]

_MAGIC = b"ARROW1"


class ArrowFormat(TableFormat):
    """Opens Arrow IPC files and streams.

    Args:
        open_file: Opens a file by its path.
    """

    def __init__(self, open_file: OpenFile | None = None) -> None:
        load_pyarrow("pyarrow.ipc")  # a missing package is an error before the first read
        self._open_file = open_file

    @override
    def open(self, path: str, columns: TableColumns, *, batch_rows: int, shard: tuple[int, int]) -> TableFile:
        return _ArrowFile(path, columns, self._open_file, batch_rows, shard)


class _ArrowFile(TableFile):
    """One open file or stream."""

    def __init__(
        self, path: str, columns: TableColumns, open_file: OpenFile | None, batch_rows: int, shard: tuple[int, int]
    ) -> None:
        self._path = path
        self._batch_rows = batch_rows
        self._shard, self._shards = shard
        self._arrow, ipc = load_pyarrow(), load_pyarrow("pyarrow.ipc")
        self._handle = open_table_file(path, open_file)
        try:
            is_file = storage.read_up_to(self._handle, len(_MAGIC)) == _MAGIC
            self._handle.seek(0)
            self._reader: Any = ipc.open_file(self._handle) if is_file else ipc.open_stream(self._handle)
            self._is_file = is_file
            self._size = storage.file_bytes(path)
            self._choices = columns.choose(self._reader.schema, path)
        except (self._arrow.ArrowException, OSError) as error:
            self._handle.close()
            raise RecordCorrupt(f"{path}: not an Arrow IPC file, or corrupt ({error})") from error
        except BaseException:
            self._handle.close()
            raise
        self._names = list(dict.fromkeys(choice.name for choice in self._choices))
        self._number = 0
        self._row = 0
        self._rows_before = 0
        self._current: Any = None
        self._read_batches = 0

    @property
    @override
    def size(self) -> int:
        return self._size

    @property
    @override
    def unit(self) -> str:
        return "bytes"

    @override
    def read(self) -> TableRows | None:
        while True:
            batch = self._load()
            if batch is None:
                return None
            begin = batch.num_rows * self._shard // self._shards
            end = batch.num_rows * (self._shard + 1) // self._shards
            first = max(self._row, begin)
            if first < end:
                count = min(self._batch_rows, end - first)
                self._row = first + count
                columns = native_columns(batch.slice(first, count), self._choices)
                return TableRows(columns, 0, count, self._rows_before + first)
            self._rows_before += batch.num_rows
            self._number += 1
            self._row = 0
            self._current = None

    @override
    def position(self) -> dict[str, int]:
        return {"batch": self._number, "before": self._rows_before, "row": self._row}

    @override
    def seek(self, position: Mapping[str, Any]) -> None:
        self._number, self._row = int(position["batch"]), int(position["row"])
        self._rows_before = int(position["before"])
        batch = self._load()
        if self._row and (batch is None or self._row > batch.num_rows):
            raise DataError(f"{self._path} has no row {self._row} in record batch {self._number}; restore the file")

    @override
    def close(self) -> None:
        self._current = None
        if not self._is_file:
            self._reader.close()
        self._handle.close()

    def _load(self) -> Any:
        """Return the current record batch with the chosen columns; None at the end."""
        if self._current is not None:
            return self._current
        try:
            if self._is_file:
                if self._number >= self._reader.num_record_batches:
                    return None
                batch = self._reader.get_batch(self._number)
            else:
                while True:
                    batch = self._reader.read_next_batch()
                    self._read_batches += 1
                    if self._read_batches > self._number:
                        break
        except StopIteration:
            return None
        except (self._arrow.ArrowException, OSError) as error:
            raise RecordCorrupt(f"{self._path}: record batch {self._number} is corrupt: {error}") from error
        self._current = batch.select(self._names)
        return self._current
