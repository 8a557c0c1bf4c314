"""``ParquetSource``: streams the row groups of Parquet files, with bounded memory and exact resume.

The caller expands patterns. ``table_files`` reads file after file; ``arrow_columns`` maps columns to features.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from typing_extensions import override

from monolith.core.errors import DataError, RecordCorrupt
from monolith.data.sources.arrow_columns import Columns, LineField, TableColumns, load_pyarrow, native_columns
from monolith.data.sources.column_options import ColumnOptions
from monolith.data.sources.table_files import (
    OpenFile,
    TableFile,
    TableFilesSource,
    TableFormat,
    TableRows,
    open_table_file,
)

__all__ = ["ParquetFormat", "ParquetSource"]

# Pages are read through a buffer of this size per column, so memory never holds a whole row group.
_COLUMN_BUFFER_BYTES = 1 << 20


class ParquetFormat(TableFormat):
    """Opens Parquet files.

    Args:
        open_file: Opens a file by its path; default: local paths and URLs.
    """

    def __init__(self, open_file: OpenFile | None = None) -> None:
        load_pyarrow("pyarrow.parquet")  # a missing package is an error before the first read
        self._open_file = open_file

    @override
    def open(self, path: str, columns: TableColumns, *, batch_rows: int, shard: tuple[int, int]) -> TableFile:
        return _ParquetFile(path, self._open_file, columns, batch_rows, shard)


class ParquetSource(TableFilesSource):
    """Reads the rows of Parquet files as records of ``batch_rows`` rows.

    A position is a file, a row group and a row of that group. A record never spans two row groups. Readers that share
    a file read every ``count``-th row group each, or, of a file with fewer row groups, a range of rows of each group.

    The arguments are those of ``TableFilesSource``; ``open_file`` opens a file by its path.
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
        options: ColumnOptions | None = None,
    ) -> None:
        super().__init__(
            paths,
            ParquetFormat(open_file),
            columns,
            line_fields=line_fields,
            shard=shard,
            batch_rows=batch_rows,
            options=options,
        )


class _ParquetFile(TableFile):
    """One open file and the columns chosen from it."""

    def __init__(
        self, path: str, open_file: OpenFile | None, columns: TableColumns, batch_rows: int, shard: tuple[int, int]
    ) -> None:
        self._path = path
        self._arrow = load_pyarrow()
        self._batch_rows = batch_rows
        self._handle = open_table_file(path, open_file)
        try:
            self._parquet = load_pyarrow("pyarrow.parquet").ParquetFile(
                self._handle, buffer_size=_COLUMN_BUFFER_BYTES, pre_buffer=False
            )
            self._choices = columns.choose(self._parquet.schema_arrow, path)
        except (self._arrow.ArrowException, OSError) as exc:
            self._handle.close()
            raise RecordCorrupt(f"{path}: not a Parquet file, or corrupt ({exc})") from exc
        except BaseException:
            self._handle.close()
            raise
        metadata = self._parquet.metadata
        self._rows: int = metadata.num_rows
        self._group_rows: list[int] = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self._shard, self._shards = shard
        self._row_group = 0
        self._row = self._begin(0)
        self._batches: Iterator[Any] | None = None

    @property
    @override
    def size(self) -> int:
        return self._rows

    @property
    @override
    def unit(self) -> str:
        return "rows"

    @override
    def read(self) -> TableRows | None:
        while self._row_group < len(self._group_rows):
            if self._batches is None:
                self._batches = self._read_group(self._row_group, self._row, self._end(self._row_group))
            batch = next(self._batches, None)
            if batch is not None:
                first_row = sum(self._group_rows[: self._row_group]) + self._row
                self._row += batch.num_rows
                return TableRows(native_columns(batch, self._choices), 0, batch.num_rows, first_row)
            self._batches = None
            self._row_group += 1
            self._row = self._begin(self._row_group)
        return None

    @override
    def position(self) -> dict[str, int]:
        return {"row_group": self._row_group, "row": self._row}

    @override
    def seek(self, position: Mapping[str, Any]) -> None:
        group, row = int(position["row_group"]), int(position["row"])
        most = self._group_rows[group] if 0 <= group < len(self._group_rows) else 0
        if not 0 <= group <= len(self._group_rows) or not 0 <= row <= most:
            raise DataError(f"{self._path} has no row {row} in row group {group}; restore the file")
        self._row_group, self._row = group, max(row, self._begin(group))

    @override
    def close(self) -> None:
        self._batches = None
        self._parquet.close(force=True)
        self._handle.close()

    # A file with at least as many row groups as shards is split by row groups, else each group by rows.

    def _begin(self, group: int) -> int:
        """Return the first row of the shard in a group."""
        if group >= len(self._group_rows) or len(self._group_rows) >= self._shards:
            return 0
        return self._group_rows[group] * self._shard // self._shards

    def _end(self, group: int) -> int:
        """Return the row behind the last one of the shard in a group."""
        rows = self._group_rows[group]
        if len(self._group_rows) >= self._shards:
            return rows if group % self._shards == self._shard else 0
        return rows * (self._shard + 1) // self._shards

    def _read_group(self, group: int, begin: int, end: int) -> Iterator[Any]:
        """Yield the rows of a row group from ``begin`` to ``end``, in batches."""
        if begin >= end:
            return
        names = list(dict.fromkeys(choice.name for choice in self._choices))
        row = 0
        try:
            for batch in self._parquet.iter_batches(self._batch_rows, row_groups=[group], columns=names):
                first, last = max(begin - row, 0), min(end - row, batch.num_rows)
                row += batch.num_rows
                if first < last:
                    yield batch.slice(first, last - first)
                if row >= end and end < self._group_rows[group]:
                    return
        except (self._arrow.ArrowException, OSError) as exc:
            raise RecordCorrupt(f"{self._path}: row group {group}, after row {row}: {exc}") from exc
        if row != self._group_rows[group]:
            raise RecordCorrupt(
                f"{self._path}: row group {group} has {row} rows, its header has {self._group_rows[group]}"
            )
