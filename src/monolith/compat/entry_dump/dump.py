"""Reads and writes the original's sparse checkpoints row by row, without a table or a spec.

A single-table checkpoint is a set of TFRecord files ``<basename>-00000-of-00004``. A multi-table one has snappy
compressed data files of that name, and ``<basename>.meta-00000-of-00004`` beside them. Files are streamed. To turn a
whole checkpoint into a ``Table`` use ``monolith.compat.entry_dump.convert``, which is many times faster.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized

from monolith import _native
from monolith.compat.entry_dump.entry_codec import decode_entry, encode_entry
from monolith.compat.entry_dump.multi_dump import MultiDumpWriter, count_entries, sections
from monolith.compat.entry_dump.record_stream import Progress, RecordStream
from monolith.compat.entry_dump.shard_files import NewShards, default_shards, find_shards
from monolith.embedding.entry import Entry
from monolith.embedding.shard_map import shard_of_id

__all__ = [
    "Progress",
    "count_entries",
    "read_entry_dump",
    "read_multi_entry_dump",
    "write_entry_dump",
    "write_multi_entry_dump",
]

_REPORT_ROWS = 4096


def read_entry_dump(basename: str | os.PathLike[str], *, progress: Progress | None = None) -> Iterator[Entry]:
    """Yield the rows of a single-table checkpoint.

    ``Entry.state`` has one ``SliceState`` per element the file holds; optimizers that write none (moving average) do
    not appear.

    Args:
        basename: The path without ``-00000-of-00001``.
        progress: Called with the bytes read and the bytes in all.

    Raises:
        CheckpointMissing: the set of files is not there, or not complete.
        RecordCorrupt: a file is damaged; the text names file, offset and reason.
    """
    paths = find_shards(basename)
    total = sum(path.stat().st_size for path in paths)
    done = 0
    for path in paths:
        with RecordStream(path) as stream:
            for row, (offset, record) in enumerate(stream.records()):
                yield decode_entry(record, f"{stream.source}: record at byte {offset}")
                if progress is not None and row % _REPORT_ROWS == 0:
                    progress(done + stream.read, total)
            done += stream.size
    if progress is not None:
        progress(total, total)


def write_entry_dump(
    basename: str | os.PathLike[str],
    entries: Iterable[Entry],
    *,
    shards: int | None = None,
    optimizers: Sequence[str] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> int:
    """Write a single-table checkpoint and return the number of rows. The files appear when all are complete.

    Args:
        basename: The path without ``-00000-of-00001``.
        entries: The rows; ids are spread over the files by ``uint64(id) mod shards``.
        shards: Files to write. None: one per million rows, 1 to 4, as the original does; 1 if the length is unknown.
        optimizers: The kind of every slice's optimizer; needed where ``Entry.state`` does not name it. Entries of a
            checkpoint name it.
        overwrite: Replace files that exist.
        progress: Called with the rows written and the rows in all (0 when unknown).

    Raises:
        ConfigError: files exist, or an entry cannot be written.
    """
    total = len(entries) if isinstance(entries, Sized) else 0
    shards = default_shards(total) if shards is None else shards
    rows = 0
    with NewShards([basename], shards, overwrite=overwrite) as (files,):
        for entry in entries:
            files[shard_of_id(entry.id, shards)].write(_native.frame_record(encode_entry(entry, optimizers)))
            rows += 1
            if progress is not None and rows % _REPORT_ROWS == 0:
                progress(rows, total)
    return rows


def read_multi_entry_dump(
    basename: str | os.PathLike[str], *, progress: Progress | None = None
) -> Iterator[tuple[str, Entry]]:
    """Yield (table name, row) of a multi-table checkpoint, in the order of the files.

    Raises:
        CheckpointMissing: a set of files is not there, or not complete.
        RecordCorrupt: a file is damaged; the text names file, offset and reason.
    """
    for section in sections(basename, progress):
        taken = 0
        for offset, record in section.stream.records(section.entries):
            yield section.table, decode_entry(record, f"{section.stream.source}: record at byte {offset}")
            taken += 1
        section.check_complete(taken)


def write_multi_entry_dump(
    basename: str | os.PathLike[str],
    tables: Mapping[str, Iterable[Entry]],
    *,
    shards: int | None = None,
    optimizers: Mapping[str, Sequence[str]] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Write a multi-table checkpoint, tables in sorted order; return the rows of each.

    The arguments are those of ``write_entry_dump``, per table where that makes sense.

    Raises:
        ConfigError: files exist, or an entry cannot be written.
    """
    sizes = [len(entries) if isinstance(entries, Sized) else 0 for entries in tables.values()]
    total = sum(sizes)
    shards = default_shards(total) if shards is None else shards
    rows = dict.fromkeys(sorted(tables), 0)
    with MultiDumpWriter(basename, shards, overwrite=overwrite) as writer:
        for name in rows:
            kinds = None if optimizers is None else optimizers.get(name)
            for entry in tables[name]:
                writer.write(shard_of_id(entry.id, shards), _native.frame_record(encode_entry(entry, kinds)), 1)
                rows[name] += 1
                if progress is not None and rows[name] % _REPORT_ROWS == 0:
                    progress(sum(rows.values()), total)
            writer.end_table(name)
    return rows
