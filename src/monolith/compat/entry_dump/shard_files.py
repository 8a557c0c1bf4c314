"""Finds complete sets of files ``<basename>-00000-of-00003``, and writes a set atomically."""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from monolith.core.errors import CheckpointMissing, ConfigError

__all__ = ["NewDumpFile", "NewShards", "default_shards", "find_basenames", "find_shards", "shard_path"]

logger = logging.getLogger(__name__)

_SUFFIX = re.compile(r"-(\d{5})-of-(\d{5})")
_MEMBER = re.compile(r"(.+)-\d{5}-of-\d{5}")
# Other sets of files beside the multi-table files of the original: admission filters, and tables in their own files.
_NOT_MULTI = re.compile(r"hash_filter_\d+|MonolithHashTable_.+")
_MAX_SHARDS = 99999


def shard_path(basename: Path, index: int, shards: int) -> Path:
    """Return the path of one file of a set."""
    return basename.with_name(f"{basename.name}-{index:05d}-of-{shards:05d}")


def default_shards(rows: int) -> int:
    """Return how many files the original makes of so many rows: one per million, 1 to 4."""
    return min(max(rows // 1_000_000, 1), 4)


def find_shards(basename: str | os.PathLike[str]) -> list[Path]:
    """Return the files of the set in order.

    Only names that continue ``basename`` by exactly ``-ddddd-of-ddddd`` count, so neither temporary files nor the set
    ``table10`` beside ``table1`` are in the way.

    Raises:
        CheckpointMissing: no such file, files of sets of different sizes, an index beyond the size, or a gap.
    """
    base = Path(basename)
    found = _members(base)
    if not found:
        raise CheckpointMissing(f"no file {base}-ddddd-of-ddddd; check the path, which ends before the first '-0'")
    sizes = sorted({size for _, size in found})
    if len(sizes) > 1:
        raise CheckpointMissing(f"{base} has files of sets of {' and '.join(map(str, sizes))}; move one set away")
    size = sizes[0]
    beyond = [path for (index, _), path in found.items() if index >= size]
    if beyond:
        raise CheckpointMissing(f"{beyond[0]} has an index beyond its own count of {size}; it cannot belong there")
    missing = [index for index in range(size) if (index, size) not in found]
    if missing:
        raise CheckpointMissing(
            f"{shard_path(base, missing[0], size)} is missing, and {len(missing) - 1} more of {size}; "
            "copy the whole set"
        )
    return [found[index, size] for index in range(size)]


def find_basenames(folder: Path) -> list[Path]:
    """Return the basenames of the multi-table files in a folder, such as the ``.assets`` of a checkpoint, sorted.

    Admission filters and single tables of the original, which may lie beside them, are left out with a warning.

    Raises:
        CheckpointMissing: The folder has no such files.
    """
    names = {match[1] for path in folder.iterdir() if (match := _MEMBER.fullmatch(path.name))}
    others = {name for name in names if _NOT_MULTI.fullmatch(name) and f"{name}.meta" not in names}
    if others:
        logger.warning("files of other kinds left out folder=%s names=%s", folder, ",".join(sorted(others)))
    basenames = sorted(folder / name for name in names - others if not name.endswith(".meta"))
    if not basenames:
        raise CheckpointMissing(f"'{folder}' has no multi-table file NAME-ddddd-of-ddddd; check the path")
    return basenames


def _members(base: Path) -> dict[tuple[int, int], Path]:
    found = {}
    if base.parent.is_dir():
        for path in base.parent.iterdir():
            if not path.name.startswith(base.name):
                continue
            match = _SUFFIX.fullmatch(path.name, len(base.name))
            if match:
                found[int(match[1]), int(match[2])] = path
    return dict(sorted(found.items()))


class NewDumpFile:
    """A file that is written under a temporary name and appears under its own when it is complete."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._temporary = self.path.with_name(f"{self.path.name}-tmp-{secrets.randbits(64)}")
        self._file: BinaryIO = open(self._temporary, "xb")  # noqa: SIM115 - closed by publish or discard

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes.

        Raises:
            OSError: The file cannot be written; the text names it, unlike the system's error for a full disk.
        """
        try:
            self._file.write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def close(self) -> None:
        """Put everything on the disk, still under the temporary name; raises like ``write``."""
        if self._file.closed:
            return
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def publish(self) -> None:
        """Close the file and rename it to its final name, replacing an earlier file; an error discards the file."""
        try:
            self.close()
            os.replace(self._temporary, self.path)
        except BaseException:
            self.discard()
            raise
        _sync_directory(self.path.parent)

    def discard(self) -> None:
        """Close, and leave nothing behind."""
        with suppress(OSError):  # a full disk refuses the buffered bytes
            self._file.close()
        self._temporary.unlink(missing_ok=True)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class NewShards:
    """New sets of files that appear together when the ``with`` block ends, and not at all when it raises.

    Args:
        basenames: One set each, all of ``shards`` files.
        shards: Files in a set.
        overwrite: Replace sets that exist; older files of other counts are removed last.

    Raises:
        ConfigError: ``shards`` is out of range, or a set exists and ``overwrite`` is False.
    """

    def __init__(self, basenames: Iterable[str | os.PathLike[str]], shards: int, *, overwrite: bool = False) -> None:
        if not 1 <= shards <= _MAX_SHARDS:
            raise ConfigError(f"shards is {shards}; give a number from 1 to {_MAX_SHARDS}")
        self._basenames = [Path(basename) for basename in basenames]
        self._shards = shards
        for base in self._basenames:
            if not overwrite and _members(base):
                raise ConfigError(f"files {base}-ddddd-of-ddddd exist; choose another name, or allow to overwrite")
        self._sets: list[list[NewDumpFile]] = []

    def __enter__(self) -> list[list[NewDumpFile]]:
        try:
            for base in self._basenames:
                files: list[NewDumpFile] = []
                self._sets.append(files)
                for index in range(self._shards):
                    files.append(NewDumpFile(shard_path(base, index, self._shards)))
        except BaseException:
            self._discard()
            raise
        return self._sets

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._discard()
            return
        files = [file for each in self._sets for file in each]
        try:
            for file in files:
                file.close()
            if len(files) > 1:  # incomplete until the end, so that no reader mixes old files with new ones
                files[-1].path.unlink(missing_ok=True)
            for file in files:
                file.publish()
        except BaseException:
            self._discard()
            raise
        for base in self._basenames:
            for (_, size), path in _members(base).items():
                if size != self._shards:
                    path.unlink()

    def _discard(self) -> None:
        for each in self._sets:
            for file in each:
                file.discard()
