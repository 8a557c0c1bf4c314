"""The manifest of a checkpoint: one sealed file that names every other file with its size and checksum.

It is written last. Readers believe only what it names. What is in the files, nothing here knows.
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
    """Relative to the checkpoint's folder, with ``/``."""
    bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointManifest:
    """What a checkpoint is and which files it has."""

    step: int
    number: int
    """Rises with every save into one folder. Steps may start over (``clear_nn``, an older ``restore_ckpt``)."""
    kind: Literal["full", "dense_only"]
    saved_at_s: float
    """Wall time of the cut."""
    reason: str
    package_version: str
    is_spared: bool = False
    """Whether retention never removes it: one per ``keep_checkpoint_every_n_hours``."""
    spare_after_s: float | None = None
    """The first later save that is spared is the one after this time; None = none will be."""
    tables: Mapping[str, int] = field(default_factory=dict)
    """Table name to rows."""
    files: tuple[FileRecord, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of all files; the manifest itself is not among them."""
        return sum(file.bytes for file in self.files)


def describe_files(folder: Path) -> tuple[FileRecord, ...]:
    """Return size and checksum of every file under ``folder``, by name; it must not hold a manifest yet."""
    names = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    records = []
    for name in names:
        size, checksum = _measure(folder / name)
        records.append(FileRecord(name=name, bytes=size, crc32c=checksum))
    return tuple(records)


def write_manifest(folder: Path, manifest: CheckpointManifest) -> None:
    """Write the manifest of the files in ``folder`` and wait until the disk has it."""
    body = {"format": _FORMAT, "version": _VERSION, **dataclasses.asdict(manifest)}
    write_synced(folder / MANIFEST, seal(body))


def read_manifest(folder: str | os.PathLike[str]) -> CheckpointManifest:
    """Return the manifest of the checkpoint in ``folder``.

    Raises:
        CheckpointMissing: There is no such folder, or no manifest in it.
        ManifestInvalid: The manifest was altered.
        VersionConflict: It is of a release that this one does not know.
    """
    path = Path(folder) / MANIFEST
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointMissing(f"'{folder}' holds no checkpoint: there is no {MANIFEST} in it") from None
    try:
        body = unseal(content)
    except ValueError as error:
        raise ManifestInvalid(f"'{path}' cannot be believed: {error}") from error
    if body.pop("format", None) != _FORMAT:
        raise ManifestInvalid(f"'{path}' is not the manifest of a checkpoint")
    version = body.pop("version")
    if version != _VERSION:
        raise VersionConflict(
            f"'{path}' has version {version}, this release reads {_VERSION}; use the one that wrote it"
        )
    return _decoded(body)


def _decoded(body: dict[str, Any]) -> CheckpointManifest:
    files = tuple(FileRecord(**file) for file in body.pop("files"))
    return CheckpointManifest(**body, files=files)


class _Manifest(Protocol):
    """What names files: the manifest of a checkpoint, or of an export."""

    @property
    def files(self) -> Sequence[FileRecord]: ...


def verify_files(
    folder: str | os.PathLike[str],
    manifest: _Manifest,
    *,
    size_only: Collection[str] = (),
    progress: Callable[[str, int, int], None] | None = None,
) -> None:
    """Check the size of every file, then every checksum.

    Args:
        folder: The checkpoint, or the export.
        manifest: What it should hold.
        size_only: Names of files whose bytes someone else checks.
        progress: Called with the name of the file that comes next, the bytes checked and the bytes in all.

    Raises:
        ManifestInvalid: A file is missing, or is not what was written; the text names it.
    """
    root = Path(folder)
    for file in manifest.files:
        _check_size(root / file.name, file)
    wanted = [file for file in manifest.files if file.name not in size_only]
    total, done = sum(file.bytes for file in wanted), 0
    for file in wanted:
        if progress is not None:
            progress(file.name, done, total)
        _, checksum = _measure(root / file.name)
        if checksum != file.crc32c:
            raise ManifestInvalid(
                f"'{root / file.name}' was altered: its checksum is {checksum:08x}, the manifest says {file.crc32c:08x}"
            )
        done += file.bytes


def _check_size(path: Path, file: FileRecord) -> None:
    try:
        size = path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        raise ManifestInvalid(f"'{path}' is missing; the manifest names it") from None
    if size != file.bytes:
        raise ManifestInvalid(f"'{path}' has {size} bytes, the manifest says {file.bytes}")


def _measure(path: Path) -> tuple[int, int]:
    """Size and checksum of a file."""
    size = checksum = 0
    buffer = bytearray(_PIECE_BYTES)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            checksum = _native.crc32c(memoryview(buffer)[:count], checksum)
            size += count
    return size, checksum
