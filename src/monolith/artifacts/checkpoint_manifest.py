"""Manifest of a checkpoint: one sealed file with the name, size and checksum of every other file.

The manifest is written last. Readers use only files that it names. Plain values and pure functions of a folder.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from monolith import _native
from monolith.core.durable_files import seal, unseal, write_synced
from monolith.core.errors import CheckpointMissing, ManifestInvalid, VersionConflict

__all__ = [
    "MANIFEST",
    "CheckpointManifest",
    "FileRecord",
    "describe_files",
    "measure_file",
    "read_manifest",
    "verify_files",
    "write_manifest",
]

MANIFEST = "manifest.json"
_FORMAT = "monolith.checkpoint"
_VERSION = 1
_PIECE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """One file of a checkpoint."""

    name: str
    """Path relative to the checkpoint's folder, with ``/``."""
    bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointManifest:
    """Content of a checkpoint's manifest."""

    step: int
    number: int
    """Increases with every save into a folder. Steps may restart (``clear_nn``, an older ``restore_ckpt``)."""
    kind: Literal["full", "dense_only", "tables"]
    """``tables``: a bare snapshot that a run starts from; no manifest on disk has it."""
    saved_at_s: float
    """Wall time of the cut."""
    reason: str
    package_version: str
    is_spared: bool = False
    """Whether retention keeps it: one checkpoint per ``keep_checkpoint_every_n_hours``."""
    spare_after_s: float | None = None
    """The first save after this time is spared; None spares no later save."""
    tables: Mapping[str, int] = field(default_factory=dict)
    """Table name to rows."""
    files: tuple[FileRecord, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of all files without the manifest."""
        return sum(file.bytes for file in self.files)


def describe_files(folder: Path) -> tuple[FileRecord, ...]:
    """Return name, size and checksum of every file under ``folder``. Call it before ``write_manifest``."""
    names = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    records = []
    for name in names:
        size, checksum = measure_file(folder / name)
        records.append(FileRecord(name=name, bytes=size, crc32c=checksum))
    return tuple(records)


def write_manifest(folder: Path, manifest: CheckpointManifest) -> None:
    """Write and sync the manifest of ``folder``."""
    body = {"format": _FORMAT, "version": _VERSION, **dataclasses.asdict(manifest)}
    write_synced(folder / MANIFEST, seal(body))


def read_manifest(folder: str | os.PathLike[str]) -> CheckpointManifest:
    """Return the manifest of the checkpoint in ``folder``.

    Raises:
        CheckpointMissing: The folder or its manifest does not exist.
        ManifestInvalid: The manifest is corrupt.
        VersionConflict: Another release wrote the manifest.
    """
    path = Path(folder) / MANIFEST
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointMissing(f"'{folder}' has no {MANIFEST}, expected a checkpoint") from None
    try:
        body = unseal(content)
    except ValueError as error:
        raise ManifestInvalid(f"'{path}' is corrupt: {error}") from error
    if body.pop("format", None) != _FORMAT:
        raise ManifestInvalid(f"'{path}' has another format, expected the manifest of a checkpoint")
    version = body.pop("version")
    if version != _VERSION:
        raise VersionConflict(f"version of '{path}' is {version}, expected {_VERSION}; use the release that wrote it")
    return _decode(body)


def _decode(body: dict[str, Any]) -> CheckpointManifest:
    files = tuple(FileRecord(**file) for file in body.pop("files"))
    return CheckpointManifest(**body, files=files)


class _Manifest(Protocol):
    """Manifest of a checkpoint or of an export."""

    @property
    def files(self) -> Sequence[FileRecord]: ...


def verify_files(
    folder: str | os.PathLike[str],
    manifest: _Manifest,
    *,
    size_only: Collection[str] = (),
    progress: Callable[[str, int, int], None] | None = None,
) -> None:
    """Check the size of every file, then the checksums.

    Args:
        folder: Folder of the checkpoint or export.
        manifest: Its manifest.
        size_only: Names of files whose checksum is not checked here.
        progress: Called before each file with its name, the checked bytes and the total bytes.

    Raises:
        ManifestInvalid: A file is missing or damaged; the text names it.
    """
    root = Path(folder)
    for file in manifest.files:
        _check_size(root / file.name, file)
    wanted = [file for file in manifest.files if file.name not in size_only]
    total, done = sum(file.bytes for file in wanted), 0
    for file in wanted:
        if progress is not None:
            progress(file.name, done, total)
        _, checksum = measure_file(root / file.name)
        if checksum != file.crc32c:
            raise ManifestInvalid(
                f"'{root / file.name}' is corrupt: its checksum is {checksum:08x}, expected {file.crc32c:08x}"
            )
        done += file.bytes


def _check_size(path: Path, file: FileRecord) -> None:
    try:
        size = path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        raise ManifestInvalid(f"'{path}' is missing, expected as in the manifest") from None
    if size != file.bytes:
        raise ManifestInvalid(f"'{path}' has {size} bytes, expected {file.bytes}")


def measure_file(path: Path) -> tuple[int, int]:
    """Return size and checksum of a file."""
    size = checksum = 0
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(min(_PIECE_BYTES, os.fstat(file.fileno()).st_size + 1))
        while count := file.readinto(buffer):
            checksum = _native.crc32c(memoryview(buffer)[:count], checksum)
            size += count
    return size, checksum
