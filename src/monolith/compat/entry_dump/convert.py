"""Converts whole tables to and from the original's sparse checkpoints, through the native codec.

Rows move as blocks of raw words with their optimizer state, so training resumes exactly where the original stopped.
Files are streamed: besides the table, a conversion holds a few megabytes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from monolith import _native
from monolith.compat.entry_dump.multi_dump import MultiDumpWriter, sections
from monolith.compat.entry_dump.record_stream import NO_LIMIT, Progress, RecordStream
from monolith.compat.entry_dump.shard_files import NewShards, default_shards, find_shards
from monolith.core.errors import ConfigError, SchemaMismatch
from monolith.embedding.shard_map import shard_of
from monolith.embedding.specs import MAX_SLOTS, TableSpec
from monolith.embedding.table import Table

__all__ = [
    "entry_dump_to_table",
    "multi_entry_dump_to_tables",
    "restore_multi_entry_dump",
    "table_to_entry_dump",
    "tables_to_multi_entry_dump",
]

logger = logging.getLogger(__name__)

Basenames: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""Path of a set of files without ``-00000-of-00001``, or the paths of several sets."""

_PAGE_ROWS = 65536
_SECONDS_PER_DAY = 86400


class _Rows(NamedTuple):
    """A block of n raw rows. Shapes: (n,), (n,), (n, row words)."""

    ids: NDArray[np.int64]
    times_s: NDArray[np.uint32]
    words: NDArray[np.float32]


def entry_dump_to_table(
    basename: Basenames,
    spec: TableSpec,
    *,
    allow_missing_state: bool = False,
    progress: Progress | None = None,
) -> Table:
    """Return a new table with the rows of a single-table checkpoint.

    A record with fewer values than the table has columns keeps the initial values of a new row in the others.

    Args:
        basename: The path without ``-00000-of-00001``; several for the parts of several parameter servers.
        spec: The table to make; its slices must have the widths and optimizers of the checkpoint.
        allow_missing_state: Start optimizer state that the records lack as new (an item cache has none).
        progress: Called with the bytes read and the bytes in all.

    Raises:
        CheckpointMissing: the set of files is not there, or not complete.
        RecordCorrupt: a file is damaged, or does not fit the slices of the spec.
    """
    paths = [path for part in _parts(basename) for path in find_shards(part)]
    total = sum(path.stat().st_size for path in paths)
    table, schema = Table(spec), _schema_of(spec)
    done = 0
    for path in paths:
        with RecordStream(path) as stream:
            for _ in _import(table, schema, stream, NO_LIMIT, allow_missing_state):
                if progress is not None:
                    progress(done + stream.read, total)
            stream.finish()
            done += stream.size
    return table


def table_to_entry_dump(
    table: Table,
    basename: str | os.PathLike[str],
    *,
    shards: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> int:
    """Write a single-table checkpoint and return the number of rows. Expired rows are left out, as the original does.

    Args:
        table: A training table.
        basename: The path without ``-00000-of-00001``.
        shards: Files to write. None: one per million rows, 1 to 4.
        overwrite: Replace files that exist.
        progress: Called with the rows done and the rows in all.

    Raises:
        ConfigError: files exist, or the table cannot be written in this format.
    """
    schema = _schema_for(table)
    total, written = len(table), 0
    shards = default_shards(total) if shards is None else shards
    with NewShards([basename], shards, overwrite=overwrite) as (files,):
        for rows in _export(table, progress, 0, total):
            for shard, part in _by_shard(rows, shards):
                files[shard].write(schema.encode(*part))
            written += len(rows.ids)
    return written


def multi_entry_dump_to_tables(
    basename: Basenames,
    specs: Iterable[TableSpec],
    *,
    allow_missing_state: bool = False,
    progress: Progress | None = None,
) -> dict[str, Table]:
    """Return new tables with the rows of a multi-table checkpoint, by name.

    Tables are matched by name or by ``extra_restore_names``. Tables of the checkpoint that no spec asks for are
    skipped; a spec that the checkpoint lacks gives an empty table and a warning.

    Raises:
        CheckpointMissing: a set of files is not there, or not complete.
        RecordCorrupt: a file is damaged, or does not fit the slices of a spec.
        ConfigError: two specs claim one name.
    """
    wanted = sorted(specs, key=lambda spec: spec.name)
    tables = {spec.name: Table(spec) for spec in wanted}
    if len(tables) < len(wanted):
        raise ConfigError(f"names of specs are {[spec.name for spec in wanted]}, expected different ones; rename one")
    restore_multi_entry_dump(basename, tables, allow_missing_state=allow_missing_state, progress=progress)
    return tables


def restore_multi_entry_dump(
    basename: Basenames,
    tables: Mapping[str, Table],
    *,
    allow_missing_state: bool = False,
    progress: Progress | None = None,
) -> None:
    """Put the rows of a multi-table checkpoint into existing tables, which keep the rows they have.

    ``basename`` may be several, for the parts of several parameter servers. A table may have rows in each of them.
    Matching and errors are those of ``multi_entry_dump_to_tables``.
    """
    schemas = {name: _schema_for(table) for name, table in tables.items()}
    names = {old: name for name, table in tables.items() for old in table.spec.extra_restore_names}
    names |= {name: name for name in tables}
    seen = set()
    for part in _parts(basename):
        for section in sections(part, progress):
            name = names.get(section.table)
            if name is None:
                section.check_complete(section.stream.skip(section.entries))
                continue
            seen.add(name)
            blocks = _import(tables[name], schemas[name], section.stream, section.entries, allow_missing_state)
            section.check_complete(sum(blocks))
    for name in sorted(tables.keys() - seen):
        logger.warning("table missing in the checkpoint, no rows restored table=%s checkpoint=%s", name, basename)


def tables_to_multi_entry_dump(
    tables: Mapping[str, Table],
    basename: str | os.PathLike[str],
    *,
    shards: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Write a multi-table checkpoint, tables in sorted order; return the rows of each. Expired rows are left out.

    The arguments are those of ``table_to_entry_dump``.

    Raises:
        ConfigError: files exist, or a table cannot be written in this format.
    """
    schemas = {name: _schema_for(tables[name]) for name in sorted(tables)}
    total = sum(len(table) for table in tables.values())
    shards = default_shards(total) if shards is None else shards
    written = dict.fromkeys(schemas, 0)
    done = 0
    with MultiDumpWriter(basename, shards, overwrite=overwrite) as writer:
        for name, schema in schemas.items():
            for rows in _export(tables[name], progress, done, total):
                for shard, part in _by_shard(rows, shards):
                    writer.write(shard, schema.encode(*part), len(part.ids))
                written[name] += len(rows.ids)
            done += len(tables[name])
            writer.end_table(name)
    return written


def _parts(basename: Basenames) -> Sequence[str | os.PathLike[str]]:
    return [basename] if isinstance(basename, str | os.PathLike) else basename


def _schema_of(spec: TableSpec) -> _native.DumpSchema:
    return _native.DumpSchema(
        [(piece.dim, piece.optimizer.base.kind, piece.optimizer.base.settings()) for piece in spec.slices]
    )


def _schema_for(table: Table) -> _native.DumpSchema:
    if table.is_serving:
        raise ConfigError(
            f"table {table.spec.name!r} is a serving table; EntryDump needs the training table it came from"
        )
    return _schema_of(table.spec)


def _import(
    table: Table, schema: _native.DumpSchema, stream: RecordStream, limit: int, allow_missing_state: bool
) -> Iterator[int]:
    """Put at most ``limit`` records into the table; yield the size of each block."""
    while limit > 0:
        ids, times_s, words, value_counts, size = schema.decode(
            stream.window, stream.offset, stream.source, limit, allow_missing_state
        )
        stream.take(size)
        if not len(ids):
            if not stream.grow():
                return
            continue
        limit -= len(ids)
        _fill_short_rows(table, _Rows(ids, times_s, words), value_counts)
        table._native.import_rows(ids, times_s, words)
        yield len(ids)


def _fill_short_rows(table: Table, rows: _Rows, value_counts: NDArray[np.uint32]) -> None:
    """Fill the columns that a record lacks with the initial values of its id."""
    dim = table.spec.dim
    short = np.flatnonzero(value_counts < dim)
    if not short.size:
        return
    first = _first_values(table, rows.ids[short])
    lacking = np.arange(dim) >= value_counts[short, None]
    rows.words[short, :dim] = np.where(lacking, first, rows.words[short, :dim])


def _first_values(table: Table, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """Insert new rows for the ids and return their values. Shapes: (n, D)."""
    table.reinitialize(ids)
    present, _, words = table._native.raw_rows(ids)
    if len(present) != len(ids):
        raise SchemaMismatch(f"table {table.spec.name!r} admits no rows for ids with short records; use NoFilter()")
    first = np.empty((len(ids), table.spec.dim), np.float32)
    order, wanted = np.argsort(present), np.argsort(ids)
    first[wanted] = words[order, : table.spec.dim]
    return first


def _export(table: Table, progress: Progress | None, before: int, total: int) -> Iterator[_Rows]:
    """Yield all rows that are not expired, in blocks."""
    limits = np.full(MAX_SLOTS, table.spec.expire_days, np.int64)
    for slot, days in table.spec.slot_expire_days.items():
        limits[slot] = days
    limits *= _SECONDS_PER_DAY
    newest = table.max_time_s
    done = 0
    for part in range(table._native.parts):
        ids = table._native.part_ids(part)
        for begin in range(0, len(ids), _PAGE_ROWS):
            rows = _Rows(*table._native.raw_rows(ids[begin : begin + _PAGE_ROWS]))
            done += len(rows.ids)
            slots = (rows.ids >> 48) & (MAX_SLOTS - 1)
            is_live = newest - rows.times_s.astype(np.int64) < limits[slots]
            yield _Rows(*(part[is_live] for part in rows))
            if progress is not None:
                progress(min(before + done, total), total)


def _by_shard(rows: _Rows, shards: int) -> Iterator[tuple[int, _Rows]]:
    """Split a block by the file that each row belongs to."""
    if shards == 1:
        yield 0, rows
        return
    owners = shard_of(rows.ids, shards)
    for shard in np.unique(owners).tolist():
        mine = owners == shard
        yield shard, _Rows(*(part[mine] for part in rows))
