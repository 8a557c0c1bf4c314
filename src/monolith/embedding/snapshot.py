"""Snapshots of tables on disk: a folder with part files and one manifest that names them all.

The engine writes and reads the part files. Here is what makes them one snapshot: the manifest is written last, synced
and renamed, so a crash at any instant leaves the snapshot that was there before. Readers believe only what the manifest
names, with its sizes and checksums.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monolith import _native
from monolith.core.durable_files import only_writer, seal, sync_folder, unseal, write_synced
from monolith.core.errors import CapacityExceeded, ConfigError, SchemaMismatch, SnapshotCorrupt
from monolith.embedding._arguments import check_whole
from monolith.embedding.specs import TableSpec
from monolith.embedding.store import Manifest

if TYPE_CHECKING:
    from monolith.embedding.table import Table

__all__ = ["SavedTable", "TableCut", "read_manifest", "restore", "save"]

MANIFEST = "manifest.json"
_FORMAT = "monolith.table_snapshot"
_VERSION = 1
_ROWS_PER_FILE = 1_000_000
_MOST_FILES = 4
_MOST_SHARDS = 9999


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTable:
    """One table of a snapshot, as the manifest describes it."""

    folder: Path
    generation: int
    name: str
    spec: dict[str, Any] | None
    """The spec's JSON form; None when it had none."""
    slices: list[dict[str, Any]]
    is_serving: bool
    skip_zero_rows: bool
    rows: int
    max_time_s: int
    turn: int
    scales: list[float]
    parts: list[_native.SnapshotPart]
    filter: dict[str, Any] | None

    @property
    def dim(self) -> int:
        """Columns of a row, all slices together."""
        return sum(int(piece["dim"]) for piece in self.slices)

    @property
    def bytes(self) -> int:
        """Bytes of all its files; the manifest is not among them."""
        return sum(part.bytes for part in self.parts) + (int(self.filter["bytes"]) if self.filter else 0)


def save(tables: Sequence[Table], path: str | PathLike[str], shards: int | None = None) -> list[SavedTable]:
    """Write the tables, all as of one instant per table, to the folder ``path``.

    Args:
        tables: Tables with different names.
        path: A folder; made when missing. A snapshot in it is replaced, whole or not at all.
        shards: Files per table; None = one per million rows, at most 4.
    """
    _check_target(Path(path), shards)  # before tables begin to keep rows aside
    return TableCut(tables).write_tables(path, shards)


class TableCut:
    """Tables as they were at one instant each. Taking it is quick; writing it may be left to another thread.

    Rows that change before they are written are kept aside, so write it soon. A table has one cut at a time: the next
    one waits until this one is written or dropped. Written once; ``drop`` is for a cut that is not wanted any more.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        self._tables = list(tables)
        self._cuts = [_native.Cut(table._native) for table in self._tables]
        self._is_spent = False

    def write(self, path: str | PathLike[str], shards: int | None = None) -> Manifest:
        """Write the tables to the folder ``path``, whole or not at all; see ``save``."""
        saved = self.write_tables(path, shards)
        return Manifest(
            path=Path(path),
            rows={table.name: table.rows for table in saved},
            max_time_s={table.name: table.max_time_s for table in saved},
        )

    def drop(self) -> None:
        """Let go of the tables."""
        self._is_spent = True
        self._cuts.clear()

    def write_tables(self, path: str | PathLike[str], shards: int | None = None) -> list[SavedTable]:
        """Like ``write``; return what the manifest says of each table."""
        if self._is_spent:
            raise ConfigError("this cut was already written or dropped; take another")
        folder = Path(path)
        try:
            _check_target(folder, shards)
            folder.mkdir(parents=True, exist_ok=True)
            with only_writer(folder):
                self._write_and_publish(folder, shards)
                return read_manifest(folder)
        finally:
            # Explicitly: an error keeps the frames of this call, and those must not keep the tables cut.
            self.drop()

    def _write_and_publish(self, folder: Path, shards: int | None) -> None:
        generation = secrets.randbits(63)
        written: list[Path] = []
        try:
            entries = []
            for index, table in enumerate(self._tables):
                entries.append(_write_table(folder, generation, index, table, self._cuts, shards, written))
            body = {"format": _FORMAT, "version": _VERSION, "generation": generation, "tables": entries}
            manifest = folder / f"{MANIFEST}.tmp-{secrets.token_hex(8)}"
            written.append(manifest)
            write_synced(manifest, seal(body))
            sync_folder(folder)
            _native.failpoint("snapshot.before_rename")
            manifest.replace(folder / MANIFEST)
        except BaseException:
            for file in written:
                file.unlink(missing_ok=True)
            raise
        # From here on the new snapshot is the snapshot, whatever fails.
        _native.failpoint("snapshot.after_rename")
        sync_folder(folder)
        _remove_other_generations(folder, generation)


def _check_target(folder: Path, shards: int | None) -> None:
    if shards is not None:
        check_whole("shards", shards, 1, _MOST_SHARDS)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; give a folder to save the snapshot in")


def _write_table(
    folder: Path,
    generation: int,
    index: int,
    table: Table,
    cuts: list[_native.Cut],
    shards: int | None,
    written: list[Path],
) -> dict[str, Any]:
    # No local name for the cut: see TableCut.write_tables.
    count = shards or min(_MOST_FILES, max(1, cuts[index].rows // _ROWS_PER_FILE))
    stem = f"{generation:016x}-{index:04d}"
    paths = [folder / f"{stem}-{part:05d}-of-{count:05d}.rows" for part in range(count)]
    written.extend(paths)
    filter_entry = None
    if filter_state := cuts[index].filter:
        file = folder / f"{stem}.filter"
        written.append(file)
        write_synced(file, filter_state)
        filter_entry = {"name": file.name, "bytes": len(filter_state), "crc32c": _native.crc32c(filter_state)}
    parts = cuts[index].write(generation, [str(file) for file in paths])
    try:
        spec = json.loads(table.spec.to_json())
    except ConfigError:
        spec = None  # a learning rate that is a bare function has no JSON form; load() then asks for the spec
    return {
        "name": table.spec.name,
        "spec": spec,
        "slices": _slices_of(table),
        "is_serving": table.is_serving,
        "skip_zero_rows": table.is_serving and table._native.skips_zero_rows,
        "rows": sum(part.rows for part in parts),
        "max_time_s": cuts[index].max_time_s,
        "turn": cuts[index].turn,
        "scales": cuts[index].scales,
        "files": [{"name": Path(part.path).name, "bytes": part.bytes, "rows": part.rows} for part in parts],
        "filter": filter_entry,
    }


def _slices_of(table: Table) -> list[dict[str, Any]]:
    """What two tables must have in common for the rows of one to mean the same in the other."""
    if table.is_serving:
        parts = [(piece.compressor.kind, piece.compressor.settings()) for piece in table.spec.slices]
        dims = [piece.dim for piece in table.spec.slices]
        return [{"dim": dim, "compressor": kind, **settings} for dim, (kind, settings) in zip(dims, parts, strict=True)]
    return [{"dim": piece.dim, "optimizer": piece.optimizer.base.kind} for piece in table.spec.slices]


def _remove_other_generations(folder: Path, generation: int) -> None:
    """Remove what earlier saves left, finished or not; nothing names it any more."""
    for pattern in ("*.rows", "*.rows.tmp-*", "*.filter", f"{MANIFEST}.tmp-*"):
        for file in folder.glob(pattern):
            if not file.name.startswith(f"{generation:016x}-"):
                file.unlink(missing_ok=True)


def read_manifest(path: str | PathLike[str]) -> list[SavedTable]:
    """Return what the snapshot in ``path`` holds, in the order saved.

    Raises:
        SnapshotCorrupt: There is no snapshot, or its manifest was altered or is of another version.
    """
    folder = Path(path)
    file = folder / MANIFEST
    try:
        raw = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise SnapshotCorrupt(f"'{folder}' holds no snapshot: there is no {MANIFEST} in it") from None
    try:
        body = unseal(raw)
    except ValueError as error:
        raise SnapshotCorrupt(f"'{file}' at byte 0: {error}") from error
    if body["format"] != _FORMAT or body["version"] != _VERSION:
        raise SnapshotCorrupt(f"'{file}': version {body['version']} of {body['format']} is not known to this release")
    return [_saved_table(folder, body["generation"], entry) for entry in body["tables"]]


def _saved_table(folder: Path, generation: int, entry: dict[str, Any]) -> SavedTable:
    return SavedTable(
        folder=folder,
        generation=generation,
        name=entry["name"],
        spec=entry["spec"],
        slices=entry["slices"],
        is_serving=entry["is_serving"],
        skip_zero_rows=entry["skip_zero_rows"],
        rows=entry["rows"],
        max_time_s=entry["max_time_s"],
        turn=entry["turn"],
        scales=entry["scales"],
        parts=[
            _native.SnapshotPart(str(folder / file["name"]), file["bytes"], file["rows"]) for file in entry["files"]
        ],
        filter=entry["filter"],
    )


def find_table(saved: Sequence[SavedTable], spec: TableSpec) -> SavedTable | None:
    """Return the saved table of that name, or else of the first older name that is there."""
    by_name = {table.name: table for table in saved}
    return next((by_name[name] for name in (spec.name, *spec.extra_restore_names) if name in by_name), None)


def restore(table: Table, path: str | PathLike[str], *, clear: bool = True, shard: tuple[int, int] = (0, 1)) -> None:
    """Load the table's rows from the snapshot in ``path``; see ``Table.restore``."""
    saved = find_table(read_manifest(path), table.spec)
    if saved is None:
        raise SchemaMismatch(f"the snapshot '{path}' holds no table {table.spec.name!r}; see monolith inspect table")
    restore_saved(table, saved, clear=clear, shard=shard)


def restore_saved(table: Table, saved: SavedTable, *, clear: bool, shard: tuple[int, int]) -> None:
    """Load one saved table. A table that holds rows is touched only after every byte was checked."""
    index, count = shard
    if not 0 <= index < count:
        raise ConfigError(f"shard is {shard}; give (index, count) with index from 0 to count - 1")
    if len(table):
        check(table, saved)
    _check_layout(table, saved)
    _check_budget(table, saved.rows // count)
    filter_state = _read_filter(saved)
    if clear:
        table.clear()
    is_empty = not len(table)
    try:
        _native.read_snapshot(table._native, saved.generation, saved.parts, index, count)
        _native.restore_extras(table._native, saved.max_time_s, saved.scales, saved.turn, filter_state)
    except BaseException:
        if is_empty:
            table.clear()
        raise


def _check_budget(table: Table, rows: int) -> None:
    """Refuse before anything is cleared what could not fit even into an empty table."""
    needed = rows * (4 * table._native.row_words + 16)
    if table.spec.max_bytes is not None and needed > table.spec.max_bytes:
        raise CapacityExceeded(
            f"table {table.spec.name!r}: {rows} rows need at least {needed} bytes, max_bytes is "
            f"{table.spec.max_bytes}. Nothing was changed: raise max_bytes, or load fewer rows with shard=(i, n)"
        )


def check(table: Table, saved: SavedTable) -> None:
    """Check every byte of a saved table, and that it fits ``table``."""
    _check_layout(table, saved)
    _read_filter(saved)
    _native.verify_snapshot(table._native, saved.generation, saved.parts)


def _check_layout(table: Table, saved: SavedTable) -> None:
    name = table.spec.name
    if saved.is_serving != table.is_serving:
        kind = "a serving table" if saved.is_serving else "a training table"
        raise SchemaMismatch(f"table {name!r}: the snapshot '{saved.folder}' is of {kind}; load it with Table.load")
    for part in saved.parts:
        if not Path(part.path).is_file():
            raise SnapshotCorrupt(f"'{part.path}' is missing; the manifest names it")
    ours = _slices_of(table)
    if ours != saved.slices:
        raise SchemaMismatch(f"table {name!r} has slices {ours}, the snapshot '{saved.folder}' has {saved.slices}")


def _read_filter(saved: SavedTable) -> bytes:
    if saved.filter is None:
        return b""
    file = saved.folder / str(saved.filter["name"])
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise SnapshotCorrupt(f"'{file}' is missing; the manifest names it") from None
    if len(content) != saved.filter["bytes"]:
        raise SnapshotCorrupt(
            f"'{file}' at byte {len(content)}: it has {len(content)} bytes, the manifest says {saved.filter['bytes']}"
        )
    if _native.crc32c(content) != saved.filter["crc32c"]:
        raise SnapshotCorrupt(f"'{file}' at byte 0: checksum does not match")
    return content


def spec_of(saved: SavedTable) -> TableSpec:
    """Return the spec a table was saved with."""
    if saved.spec is None:
        raise ConfigError(
            f"table {saved.name!r} in '{saved.folder}' was saved with a learning rate that is a bare function, which "
            f"no file can hold; make the table from its spec, then restore()"
        )
    return TableSpec.from_json(json.dumps(saved.spec))


def only_table(path: str | PathLike[str]) -> SavedTable:
    """Return the one table of a snapshot."""
    saved = read_manifest(path)
    if len(saved) != 1:
        names = ", ".join(table.name for table in saved)
        raise ConfigError(f"'{path}' holds {len(saved)} tables ({names}); use MultiTable.load")
    return saved[0]
