"""Files of an export: opens tables and programs, and checks their bytes.

``TableFiles`` checks mapped tables after the load. One thread checks at a time; another one may look for changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from monolith import _native
from monolith.artifacts.checkpoint_manifest import FileRecord, verify_files
from monolith.artifacts.export_manifest import PROGRAM, TABLES, TORCH_PROGRAM, DenseProgram, ExportManifest
from monolith.artifacts.program_session import ProgramSession
from monolith.artifacts.torch_session import TorchSession
from monolith.core.errors import ConfigError, ManifestInvalid, SchemaMismatch, SnapshotCorrupt
from monolith.core.throttle import yield_gil
from monolith.embedding import MultiTable
from monolith.serving.servable.parts import EntryRows, OwnProgram

__all__ = ["TableFiles", "check_parts", "load_tables", "open_program"]

_Stamp = tuple[int, int, int]
_PIECE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class _Files:
    """Some files of a manifest."""

    files: Sequence[FileRecord]


class TableFiles:
    """Checks of the files of an export.

    A mapping outlives the name of its file. A file that was removed, or replaced by another one, is therefore neither
    a change nor damage of the rows in service.

    Args:
        folder: Folder of the export.
        manifest: Manifest of the export.
    """

    def __init__(self, folder: Path, manifest: ExportManifest) -> None:
        self._folder = folder
        self._manifest = manifest
        self._names = {file.name for file in manifest.files if file.name.startswith(f"{TABLES}/")}
        self._changes = 0
        self._verified = -1  # number of changes before the last complete check
        self._stamps: dict[str, _Stamp] = {}

    def verify_before_load(self, *, is_complete: bool, is_mapped: bool) -> None:
        """Check all files, without the bytes of tables unless ``is_complete``.

        Raises:
            ArtifactError: A file is missing or damaged.
        """
        self._verify(set() if is_complete else self._names)
        self._verified = self._changes if is_complete else -1
        self._stamps = {name: found for name in self._names if is_mapped and (found := self._read_stamp(name))}

    def verify_tables(self, is_wanted: Callable[[], bool]) -> None:
        """Check every byte of mapped tables; ``Servable.verify_tables`` describes it."""
        changes = self._changes
        if self._verified == changes:
            return
        for file in self._manifest.files:
            if file.name not in self._names or not self._is_in_place(file.name):
                continue
            try:
                if not self._verify_table(file, is_wanted):
                    return
            except (ManifestInvalid, OSError):
                if self._is_in_place(file.name):
                    raise
        self._verified = changes  # a change meanwhile needs another check

    def notice_changes(self) -> bool:
        """Return whether mapped files changed since the last call; ``verify_tables`` then checks them again."""
        changed = {
            name: found
            for name, stamp in self._stamps.items()
            if (found := self._read_stamp(name)) is not None and found != stamp and found[0] == stamp[0]
        }
        if not changed:
            return False
        self._stamps.update(changed)
        self._changes += 1
        return True

    def _verify(self, size_only: set[str]) -> None:
        verify_files(self._folder, self._manifest, size_only=size_only, progress=lambda *_: yield_gil())

    def _verify_table(self, file: FileRecord, is_wanted: Callable[[], bool]) -> bool:
        """Check a file, which may be large; return False if the check ended early because it is no longer wanted."""
        verify_files(self._folder, _Files([file]), size_only={file.name})
        yield_gil()
        path, checksum, buffer = self._folder / file.name, 0, bytearray(min(_PIECE_BYTES, file.bytes + 1))
        with path.open("rb", buffering=0) as content:
            while is_wanted():
                count = content.readinto(buffer)
                if not count:
                    break
                checksum = _native.crc32c(memoryview(buffer)[:count], checksum)
            else:
                return False
        if checksum != file.crc32c:
            raise ManifestInvalid(
                f"'{path}' is corrupt: its checksum is {checksum:08x}, expected {file.crc32c:08x}; export it again"
            )
        return True

    def _is_in_place(self, name: str) -> bool:
        """Return whether the folder still has the file that was loaded, under its name."""
        found, loaded = self._read_stamp(name), self._stamps.get(name)
        return found is not None and (loaded is None or found[0] == loaded[0])

    def _read_stamp(self, name: str) -> _Stamp | None:
        """Return inode, size and time of the last write; None for a missing file."""
        try:
            status = os.stat(self._folder / name)
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns


def open_program(folder: Path, program: DenseProgram, threads: int) -> OwnProgram:
    """Return a session of the dense program in a folder."""
    if program.kind == "torch":
        return TorchSession(folder / TORCH_PROGRAM, program, threads=threads)
    return ProgramSession(folder / PROGRAM, program, threads=threads)


def load_tables(folder: Path, manifest: ExportManifest, in_memory: bool) -> MultiTable:
    """Return the tables of an export.

    Raises:
        ManifestInvalid: The files differ from the manifest.
    """
    shared = manifest.shared_tables
    try:
        if shared is None:
            tables = MultiTable.load_images(folder / TABLES, in_memory=in_memory)
        else:
            tables = MultiTable.load_serving(
                os.path.normpath(folder / shared.path),
                names=[table.name for table in manifest.tables],
                shard=manifest.shard or (0, 1),
                skip_zero_rows=shared.skip_zero_rows,
                full_precision=shared.full_precision,
                generation=shared.generation,
            )
    except (SnapshotCorrupt, SchemaMismatch) as error:
        raise ManifestInvalid(str(error)) from error
    if list(tables) != [table.name for table in manifest.tables]:
        raise ManifestInvalid(
            f"'{folder / TABLES}' has tables {', '.join(tables)}, expected "
            f"{', '.join(table.name for table in manifest.tables)}; export the model again"
        )
    return tables


def check_parts(folder: Path, tables: MultiTable | None, rows: EntryRows | None, dense: object | None) -> None:
    """Check that an export with features has rows and a dense part.

    Raises:
        ConfigError: One of them is missing.
    """
    if tables is None and rows is None:
        raise ConfigError(
            f"'{folder}' is the `entry` of a distributed export; pass rows= (an EntryRows for its ps_* shards)"
        )
    if dense is None:
        raise ConfigError(
            f"'{folder}' is the `entry` of a distributed export; pass dense= (a DenseRunner for its dense_0)"
        )
