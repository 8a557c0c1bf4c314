"""Snapshots of tables on disk: a folder with part files and one manifest that names them all.

The engine writes and reads the part files. This module makes them one snapshot: the manifest is written last, synced
and renamed, so a crash at any instant leaves the earlier snapshot. Readers open only files that the manifest names, and
check sizes and checksums. Several processes with a shard each can write one snapshot: each process writes its part
(``TableCut.write_part``), and one of them the manifest (``SharedSnapshot``).
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from monolith import _native
from monolith.core.durable_files import make_folder, only_writer, seal, sync_folder, unseal, write_synced
from monolith.core.errors import CapacityExceeded, ConfigError, SchemaMismatch, SnapshotCorrupt
from monolith.embedding.arguments import check_whole
from monolith.embedding.file_removal import remove_files, wait_for_removals
from monolith.embedding.specs import TableSpec
from monolith.embedding.store import Manifest

__all__ = ["SavedShard", "SavedTable", "SharedSnapshot", "TableCut", "read_extra", "read_manifest", "restore", "save"]

MANIFEST = "manifest.json"
_FORMAT = "monolith.table_snapshot"
_VERSION = 1
_EXTRA = "extra"
_ROWS_PER_FILE = 1_000_000
_MOST_FILES = 4
_MOST_SHARDS = 9999


class EngineTable(Protocol):
    """A table of the engine with its spec: ``Table``, seen from the files it is saved in."""

    spec: TableSpec
    is_serving: bool
    budget: int | None
    """Bytes that it may take at present."""
    _native: _native.Table

    def __len__(self) -> int: ...

    def clear(self) -> None:
        """Remove all rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedShard:
    """State of a table besides its rows, in one of the processes that saved it."""

    turn: int
    scales: list[float]
    filter: dict[str, Any] | None
    """Name, size and checksum of the file with the admission counts."""
    log: dict[str, int] | None = None
    """``log`` and ``sequence`` of the delta log that the process had reached; None when it kept none."""


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
    shards: list[SavedShard]
    """One per process that saved it: number i had the ids with ``uint64(id) % len(shards) == i``."""
    parts: list[_native.SnapshotPart]

    @property
    def dim(self) -> int:
        """Columns of a row, all slices together."""
        return sum(int(piece["dim"]) for piece in self.slices)

    @property
    def bytes(self) -> int:
        """Bytes of all its files; the manifest is not among them."""
        return sum(part.bytes for part in self.parts) + self.filter_bytes

    @property
    def filter_bytes(self) -> int:
        """Bytes of its admission counts."""
        return sum(int(shard.filter["bytes"]) for shard in self.shards if shard.filter)


def save(tables: Sequence[EngineTable], path: str | PathLike[str], shards: int | None = None) -> list[SavedTable]:
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

    def __init__(self, tables: Sequence[EngineTable]) -> None:
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
        """Release the tables."""
        self._is_spent = True
        self._cuts.clear()

    def write_tables(self, path: str | PathLike[str], shards: int | None = None) -> list[SavedTable]:
        """Write like ``write``; return the manifest's entry of each table."""
        if self._is_spent:
            raise ConfigError("this cut was already written or dropped; take another")
        folder = Path(path)
        try:
            _check_target(folder, shards)
            make_folder(folder)
            with only_writer(folder):
                self._write_and_publish(folder, shards)
                return read_manifest(folder)
        finally:
            # Explicitly: an error keeps the frames of this call, and those must not keep the tables cut.
            self.drop()

    def write_part(self, path: str | PathLike[str], generation: int, index: int, count: int) -> list[dict[str, Any]]:
        """Write the tables as part ``index`` of ``count`` of a snapshot, one file each, without a manifest.

        Returns:
            The manifest's entry of each table, for ``SharedSnapshot.publish``, as JSON.
        """
        if self._is_spent:
            raise ConfigError("this cut was already written or dropped; take another")
        folder = Path(path)
        written: list[Path] = []
        try:
            return [
                _write_table(folder, generation, number, table, self._cuts, range(index, index + 1), count, written)
                for number, table in enumerate(self._tables)
            ]
        except BaseException:
            _remove(written)
            raise
        finally:
            self.drop()

    def _write_and_publish(self, folder: Path, shards: int | None) -> None:
        wait_for_removals()  # the disk has room for two snapshots, perhaps not for three
        generation = secrets.randbits(63)
        written: list[Path] = []
        try:
            entries = []
            for index, table in enumerate(self._tables):
                count = shards or min(_MOST_FILES, max(1, self._cuts[index].rows // _ROWS_PER_FILE))
                entries.append(_write_table(folder, generation, index, table, self._cuts, range(count), count, written))
            _publish(folder, generation, entries, written)
        except BaseException:
            _remove(written)
            raise
        _tidy_up(folder, generation)


class SharedSnapshot:
    """A snapshot that several processes write together, as the one that leads them sees it.

    Used as a context manager, which keeps other writers out of the folder, and removes everything again when it is
    left before ``publish``.

    Args:
        path: A folder that all of them see; made when missing.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.folder = Path(path).absolute()
        self.generation = secrets.randbits(63)
        """Argument of every ``write_part``."""
        self._is_published = False

    def __enter__(self) -> SharedSnapshot:
        _check_target(self.folder, None)
        make_folder(self.folder)
        self._lock = only_writer(self.folder)
        self._lock.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._is_published:
                _remove(list(self.folder.glob(f"{self.generation:016x}-*")))
        finally:
            self._lock.__exit__(None, None, None)

    def publish(
        self,
        parts: Sequence[Sequence[dict[str, Any]]],
        specs: Mapping[str, dict[str, Any] | None],
        extra: Mapping[str, Any] | None = None,
    ) -> list[SavedTable]:
        """Publish it as the snapshot of the folder.

        Args:
            parts: The results of ``write_part`` in each process, by its index.
            specs: JSON forms of the specs, if the caller's are more complete than those of the processes.
            extra: JSON of the caller, for ``read_extra``.

        Raises:
            SnapshotCorrupt: A file that a process wrote is not in the folder.
        """
        names = sorted({entry["name"] for part in parts for entry in part})
        entries = [_combined(name, parts) for name in names]
        for entry in entries:
            entry["spec"] = specs.get(entry["name"], entry["spec"])
            for file in [*entry["files"], *(shard["filter"] for shard in entry["shards"] if shard["filter"])]:
                _check_arrived(self.folder / file["name"], file["bytes"])
        written: list[Path] = []
        try:
            _publish(self.folder, self.generation, entries, written, extra)
        except BaseException:
            _remove(written)
            raise
        self._is_published = True
        _tidy_up(self.folder, self.generation)
        return read_manifest(self.folder)


def _combined(name: str, parts: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Return the manifest entry of a table from those of its shards."""
    found = [entry for part in parts for entry in part if entry["name"] == name]
    first = found[0]
    if len(found) != len(parts) or any(entry["slices"] != first["slices"] for entry in found):
        raise SchemaMismatch(f"table {name!r} is not the same in all {len(parts)} processes that save it")
    return {
        **first,
        "rows": sum(entry["rows"] for entry in found),
        "max_time_s": max(entry["max_time_s"] for entry in found),
        "files": [file for entry in found for file in entry["files"]],
        "shards": [shard for entry in found for shard in _shards_of(entry)],
    }


def _shards_of(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    return entry.get("shards") or [{key: entry[key] for key in ("turn", "scales", "filter", "log") if key in entry}]


def _check_arrived(file: Path, size: int) -> None:
    try:
        actual = file.stat().st_size
    except FileNotFoundError:
        raise SnapshotCorrupt(
            f"'{file}' was written by another process, but is not here; give a folder that all of them share"
        ) from None
    if actual != size:
        raise SnapshotCorrupt(f"'{file}' at byte {actual}: it has {actual} bytes, expected {size}")


def _publish(
    folder: Path,
    generation: int,
    entries: list[dict[str, Any]],
    written: list[Path],
    extra: Mapping[str, Any] | None = None,
) -> None:
    body: dict[str, Any] = {"format": _FORMAT, "version": _VERSION, "generation": generation, "tables": entries}
    if extra:
        body[_EXTRA] = dict(extra)
    manifest = folder / f"{MANIFEST}.tmp-{secrets.token_hex(8)}"
    written.append(manifest)
    write_synced(manifest, seal(body))
    sync_folder(folder)
    _native.failpoint("snapshot.before_rename")
    manifest.replace(folder / MANIFEST)


def _tidy_up(folder: Path, generation: int) -> None:
    # From here on, a failure does not undo the new snapshot.
    _native.failpoint("snapshot.after_rename")
    sync_folder(folder)
    _remove_other_generations(folder, generation)


def _remove(files: Sequence[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _check_target(folder: Path, shards: int | None) -> None:
    if shards is not None:
        check_whole("shards", shards, 1, _MOST_SHARDS)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; give a folder to save the snapshot in")


def _write_table(
    folder: Path,
    generation: int,
    index: int,
    table: EngineTable,
    cuts: list[_native.Cut],
    numbers: range,
    count: int,
    written: list[Path],
) -> dict[str, Any]:
    """Write one table as the files ``numbers`` of ``count``, and its filter; return its manifest entry."""
    # No local name for the cut: see TableCut.write_tables.
    stem = f"{generation:016x}-{index:04d}"
    paths = [folder / f"{stem}-{part:05d}-of-{count:05d}.rows" for part in numbers]
    written.extend(paths)
    filter_entry = None
    if filter_state := cuts[index].filter:
        is_whole = len(numbers) == count
        file = folder / (f"{stem}.filter" if is_whole else f"{stem}-{numbers[0]:05d}-of-{count:05d}.filter")
        written.append(file)
        write_synced(file, filter_state)
        filter_entry = {"name": file.name, "bytes": len(filter_state), "crc32c": _native.crc32c(filter_state)}
    parts = cuts[index].write(generation, [str(file) for file in paths], numbers.start, count)
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


def _slices_of(table: EngineTable) -> list[dict[str, Any]]:
    """Return the properties that two tables must share to exchange rows."""
    if table.is_serving:
        parts = [(piece.compressor.kind, piece.compressor.settings()) for piece in table.spec.slices]
        dims = [piece.dim for piece in table.spec.slices]
        return [{"dim": dim, "compressor": kind, **settings} for dim, (kind, settings) in zip(dims, parts, strict=True)]
    return [{"dim": piece.dim, "optimizer": piece.optimizer.base.kind} for piece in table.spec.slices]


def _remove_other_generations(folder: Path, generation: int) -> None:
    """Remove files of earlier saves, which no manifest names."""
    patterns = ("*.rows", "*.rows.tmp-*", "*.filter", f"{MANIFEST}.tmp-*")
    files = [file for pattern in patterns for file in folder.glob(pattern)]
    remove_files([file for file in files if not file.name.startswith(f"{generation:016x}-")])


def read_manifest(path: str | PathLike[str]) -> list[SavedTable]:
    """Return the tables of the snapshot in ``path``, in the order saved.

    Raises:
        SnapshotCorrupt: There is no snapshot, or its manifest was altered or is of another version.
    """
    body = _read_body(Path(path))
    return [_saved_table(Path(path), body["generation"], entry) for entry in body["tables"]]


def read_extra(path: str | PathLike[str]) -> dict[str, Any]:
    """Return the JSON that the publisher of the snapshot in ``path`` added; empty if it added none.

    Raises:
        SnapshotCorrupt: See ``read_manifest``.
    """
    extra: dict[str, Any] = _read_body(Path(path)).get(_EXTRA, {})
    return extra


def _read_body(folder: Path) -> dict[str, Any]:
    file = folder / MANIFEST
    try:
        raw = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise SnapshotCorrupt(f"'{folder}' holds no snapshot: there is no {MANIFEST} in it") from None
    try:
        body: dict[str, Any] = unseal(raw)
    except ValueError as error:
        raise SnapshotCorrupt(f"'{file}' at byte 0: {error}") from error
    if body["format"] != _FORMAT or body["version"] != _VERSION:
        raise SnapshotCorrupt(
            f"'{file}' is {body['format']!r} version {body['version']}, expected {_FORMAT!r} version {_VERSION}; "
            "use the release that wrote it"
        )
    return body


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
        shards=[SavedShard(**shard) for shard in _shards_of(entry)],
        parts=[
            _native.SnapshotPart(str(folder / file["name"]), file["bytes"], file["rows"]) for file in entry["files"]
        ],
    )


def find_table(saved: Sequence[SavedTable], spec: TableSpec) -> SavedTable | None:
    """Return the saved table of that name, or else of the first older name that is there."""
    by_name = {table.name: table for table in saved}
    return next((by_name[name] for name in (spec.name, *spec.extra_restore_names) if name in by_name), None)


def restore(
    table: EngineTable, path: str | PathLike[str], *, clear: bool = True, shard: tuple[int, int] = (0, 1)
) -> None:
    """Load the table's rows from the snapshot in ``path``; see ``Table.restore``."""
    saved = find_table(read_manifest(path), table.spec)
    if saved is None:
        raise SchemaMismatch(f"the snapshot '{path}' holds no table {table.spec.name!r}; see monolith inspect table")
    restore_saved(table, saved, clear=clear, shard=shard)


def restore_saved(table: EngineTable, saved: SavedTable, *, clear: bool, shard: tuple[int, int]) -> None:
    """Load one saved table. A table that holds rows is touched only after every byte was checked."""
    check_shard(table, saved, shard)
    if len(table):
        check(table, saved)
    check_layout(table, saved)
    index, count = shard
    sources = _sources(saved, index, count)
    filter_states = [_read_filter(saved, source) for source in sources]
    if clear:
        table.clear()
    is_empty = not len(table)
    if table._native.evicts_when_full:
        # A snapshot fills part after part, so that the last ones have no row to evict: all rows enter, none leaves.
        table._native.set_budget(0)
    try:
        _native.read_snapshot(table._native, saved.generation, saved.parts, index, count)
        newest = max(sources, key=lambda source: source.turn)
        _native.restore_extras(table._native, saved.max_time_s, newest.scales, newest.turn, filter_states[0])
        for state in filter_states[1:]:
            if state:
                _native.merge_filter(table._native, state)
    except BaseException:
        if is_empty:
            table.clear()
        raise
    finally:
        if table._native.evicts_when_full:
            table._native.set_budget(table.budget or 0)


def _sources(saved: SavedTable, index: int, count: int) -> list[SavedShard]:
    """Return the saved shards that have ids in common with shard ``index`` of ``count``."""
    common = math.gcd(len(saved.shards), count)
    return [shard for number, shard in enumerate(saved.shards) if (number - index) % common == 0]


def check_shard(table: EngineTable, saved: SavedTable, shard: tuple[int, int]) -> None:
    """Refuse a shard that does not exist, and one whose rows could not fit even into an empty table.

    A caller that clears tables calls this before.
    """
    index, count = shard
    if not 0 <= index < count:
        raise ConfigError(f"shard is {shard}; give (index, count) with index from 0 to count - 1")
    rows = saved.rows // count
    needed = rows * (4 * table._native.row_words + 16)
    if table.spec.max_bytes is not None and needed > table.spec.max_bytes:
        raise CapacityExceeded(
            f"table {table.spec.name!r}: {rows} rows need at least {needed} bytes, max_bytes is "
            f"{table.spec.max_bytes}. Nothing was changed: raise max_bytes, or load fewer rows with shard=(i, n)"
        )


def check(table: EngineTable, saved: SavedTable) -> None:
    """Check every byte of a saved table, and that it fits ``table``."""
    check_layout(table, saved)
    for shard in saved.shards:
        _read_filter(saved, shard)
    _native.verify_snapshot(table._native, saved.generation, saved.parts)


def check_layout(table: EngineTable, saved: SavedTable) -> None:
    """Check that the files exist, and that the rows of a saved table fit ``table``.

    Raises:
        SchemaMismatch: The kinds or slices differ.
        SnapshotCorrupt: A file is missing.
    """
    name = table.spec.name
    if saved.is_serving != table.is_serving:
        kind = "a serving table" if saved.is_serving else "a training table"
        raise SchemaMismatch(f"table {name!r}: the snapshot '{saved.folder}' is of {kind}; load it with Table.load")
    for part in saved.parts:
        if not Path(part.path).is_file():
            raise SnapshotCorrupt(f"'{part.path}' is missing; the manifest names it")
    ours = _slices_of(table)
    if ours != saved.slices:
        raise SchemaMismatch(
            f"table {name!r} has slices {ours}, the snapshot '{saved.folder}' has {saved.slices}; restore dim and "
            "optimizer of each slice, or train into a new folder"
        )


def _read_filter(saved: SavedTable, shard: SavedShard) -> bytes:
    if shard.filter is None:
        return b""
    file = saved.folder / str(shard.filter["name"])
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise SnapshotCorrupt(f"'{file}' is missing; the manifest names it") from None
    if len(content) != shard.filter["bytes"]:
        raise SnapshotCorrupt(
            f"'{file}' at byte {len(content)}: it has {len(content)} bytes, expected {shard.filter['bytes']}"
        )
    if _native.crc32c(content) != shard.filter["crc32c"]:
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
