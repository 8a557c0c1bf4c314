"""Reads and writes the original's multi-table file pairs: compressed data, and ``.meta`` files that name the tables.

Records pass through undecoded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from monolith import _native
from monolith.compat.entry_dump.record_stream import Progress, RecordStream, SnappySink
from monolith.compat.entry_dump.shard_files import NewShards, find_shards
from monolith.core.errors import CheckpointMissing, RecordCorrupt

__all__ = ["MultiDumpWriter", "Section", "count_entries", "sections"]


def _meta(basename: str | os.PathLike[str]) -> Path:
    base = Path(basename)
    return base.with_name(f"{base.name}.meta")


@dataclass(frozen=True, slots=True)
class Section:
    """The next ``entries`` records of ``stream`` belong to ``table``; the receiver takes them all."""

    stream: RecordStream
    table: str
    entries: int

    def check_complete(self, taken: int) -> None:
        """Refuse a data file that ended too early.

        Raises:
            RecordCorrupt: fewer records were ``taken`` than announced.
        """
        if taken < self.entries:
            raise RecordCorrupt(
                f"{self.stream.source}: the data ends after {taken} of {self.entries} entries of table {self.table!r}; "
                "the file was cut, or the .meta file belongs to another"
            )


def count_entries(basename: str | os.PathLike[str]) -> dict[str, int]:
    """Return how many entries each table has, over all files, in the order of the file."""
    counts: dict[str, int] = {}
    for path in find_shards(_meta(basename)):
        for table, entries in _native.read_metadata(path.read_bytes(), str(path)):
            counts[table] = counts.get(table, 0) + entries
    return counts


def sections(basename: str | os.PathLike[str], progress: Progress | None = None) -> Iterator[Section]:
    """Yield every table's part of every data file.

    Raises:
        CheckpointMissing: a file is missing, or the two sets are not of one size.
        RecordCorrupt: a file is damaged, or a data file holds more than its ``.meta`` announces.
    """
    data, meta = find_shards(basename), find_shards(_meta(basename))
    if len(data) != len(meta):
        raise CheckpointMissing(f"{basename} has {len(data)} data files and {len(meta)} .meta files; copy both sets")
    total = sum(path.stat().st_size for path in data)
    done = 0
    for data_path, meta_path in zip(data, meta, strict=True):
        with RecordStream(data_path, snappy=True) as stream:
            for table, entries in _native.read_metadata(meta_path.read_bytes(), str(meta_path)):
                yield Section(stream, table, entries)
                if progress is not None:
                    progress(done + stream.read, total)
            stream.finish()
            done += stream.size


class MultiDumpWriter:
    """Writes a set of file pairs, one table after the other; they appear when the ``with`` block ends."""

    def __init__(self, basename: str | os.PathLike[str], shards: int, *, overwrite: bool = False) -> None:
        self.shards = shards
        self._new = NewShards([basename, _meta(basename)], shards, overwrite=overwrite)
        self._rows = [0] * shards

    def __enter__(self) -> Self:
        data, self._metas = self._new.__enter__()
        self._sinks = [SnappySink(file) for file in data]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            try:
                for sink in self._sinks:
                    sink.flush()
            except BaseException as exc:
                self._new.__exit__(type(exc), exc, exc.__traceback__)
                raise
        self._new.__exit__(kind, error, trace)

    def write(self, shard: int, framed: bytes, rows: int) -> None:
        """Append ``rows`` framed records of the current table to one file."""
        self._sinks[shard].write(framed)
        self._rows[shard] += rows

    def end_table(self, table: str) -> None:
        """Assign the records since the last call to ``table``."""
        for meta, rows in zip(self._metas, self._rows, strict=True):
            meta.write(_native.frame_metadata(table, rows))
        self._rows = [0] * self.shards
