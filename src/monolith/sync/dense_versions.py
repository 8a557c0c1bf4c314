"""Versions of the dense weights: a file with the changed tensors, and a list that names the file of every tensor.

::

    dense/
      dense-00000000000000000007.safetensors    the tensors that version 7 changed
      dense-00000000000000000007.json           for every tensor the version whose file has it; sizes and checksums

``DenseWriter`` is the only writer of a folder. ``DenseReader`` reads the difference between the version in use and
another one, so it opens only files of changed tensors. Each object is used by one thread.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from monolith import _native
from monolith.artifacts.export_tensors import read_tensors, write_tensors
from monolith.core.durable_files import make_folder, replace_file, seal, sync_folder, unseal
from monolith.core.errors import ArtifactError, ManifestInvalid, VersionConflict

__all__ = ["DENSE", "DenseReader", "DenseWriter", "version_files"]

DENSE = "dense"
_FORMAT = "monolith.dense"
_VERSION = 1
_NAME = re.compile(r"dense-(\d{20})\.json")
_KEPT = 8
"""Number of versions that stay readable. A reader of one version must find its files while newer ones appear."""

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class _List:
    tensors: Mapping[str, int]
    """Tensor name to the version whose file has the tensor."""
    files: Mapping[int, tuple[int, int]]
    """Version to the size and checksum of its file."""


class DenseWriter:
    """Writes versions. The numbers continue after the newest version in the folder.

    Args:
        root: Published folder; the versions lie in its subfolder ``dense``.
    """

    def __init__(self, root: str | PathLike[str]) -> None:
        self._folder = Path(root) / DENSE
        make_folder(self._folder)
        for leftover in self._folder.glob("*.tmp*"):
            leftover.unlink()
        numbers = _numbers(self._folder)
        self.version = numbers[-1] if numbers else 0
        """Number of the newest version; 0 before the first."""
        self._last: dict[str, NDArray[Any]] = {}
        self._list = _List({}, {})

    def write(self, weights: Arrays) -> int:
        """Write the tensors that changed since the last call; return the newest version.

        The first call writes all tensors.

        Args:
            weights: All tensors. The writer keeps references, so callers must not change the arrays afterwards.

        Raises:
            ConfigError: A tensor has a type that servers do not support.
            OSError: The files could not be written. The next call writes the changes.
        """
        changed = {name: value for name, value in weights.items() if not _is_same(self._last.get(name), value)}
        if not changed and self._last.keys() == weights.keys():
            return self.version
        version = self.version + 1
        path = _tensor_path(self._folder, version)
        temporary = path.with_name(path.name + ".tmp")
        write_tensors(temporary, changed)
        record = _record(temporary)
        temporary.replace(path)
        tensors = {name: version if name in changed else self._list.tensors[name] for name in weights}
        files = {**self._list.files, version: record}
        found = _List(tensors, {number: files[number] for number in sorted(set(tensors.values()))})
        replace_file(_list_path(self._folder, version), _encode(found))
        self.version, self._list, self._last = version, found, dict(weights)
        self._tidy_up()
        return version

    def _tidy_up(self) -> None:
        """Remove files that none of the newest versions needs."""
        numbers = _numbers(self._folder)
        kept = numbers[-_KEPT:]
        needed = set(self._list.tensors.values()) | set(kept)
        for number in kept[:-1]:
            with suppress(ArtifactError):  # a damaged version is unreadable anyway
                needed |= set(_read_list(self._folder, number).tensors.values())
        for number in numbers[:-_KEPT]:
            _list_path(self._folder, number).unlink(missing_ok=True)
        for path in self._folder.glob("dense-*.safetensors"):
            if int(path.stem.removeprefix("dense-")) not in needed:
                path.unlink(missing_ok=True)
        sync_folder(self._folder)


class DenseReader:
    """Reads versions as differences from the version in use.

    Args:
        root: Published folder.
    """

    def __init__(self, root: str | PathLike[str]) -> None:
        self._folder = Path(root) / DENSE
        self._known: Mapping[str, tuple[int, int, int]] = {}

    def changes(self, version: int) -> tuple[dict[str, NDArray[Any]], Mapping[str, tuple[int, int, int]]]:
        """Return the tensors of a version that differ from the version in use, and stamps for ``mark_applied``.

        Raises:
            ArtifactError: A file is missing or corrupt.
        """
        found = _read_list(self._folder, version)
        stamps = {name: (number, *found.files[number]) for name, number in found.tensors.items()}
        wanted = {name: stamp for name, stamp in stamps.items() if self._known.get(name) != stamp}
        weights: dict[str, NDArray[Any]] = {}
        with ExitStack() as stack:
            # Open all files first: reading may take longer than newer versions take to replace them.
            files = {
                number: stack.enter_context(self._open(number)) for number in {stamp[0] for stamp in wanted.values()}
            }
            for number, file in sorted(files.items()):
                arrays = self._read(number, file, found.files[number])
                weights |= {name: arrays[name] for name, stamp in wanted.items() if stamp[0] == number}
        return weights, stamps

    def mark_applied(self, stamps: Mapping[str, tuple[int, int, int]]) -> None:
        """Mark a version as the one in use; ``changes`` compares with it from now on."""
        self._known = stamps

    def _open(self, number: int) -> BinaryIO:
        path = _tensor_path(self._folder, number)
        try:
            return path.open("rb")
        except FileNotFoundError as error:
            raise ArtifactError(f"'{path}' is gone: newer versions replaced it; read a newer cut") from error

    def _read(self, number: int, file: BinaryIO, record: tuple[int, int]) -> dict[str, NDArray[Any]]:
        path = _tensor_path(self._folder, number)
        content = file.read()
        if (len(content), _native.crc32c(content)) != record:
            raise ManifestInvalid(f"'{path}' is corrupt: size or checksum differs from the list; publish again")
        return read_tensors(path, content)


def version_files(root: str | PathLike[str], version: int) -> list[str]:
    """Return the names, relative to ``root``, of all files that a version needs; the list is the last.

    Raises:
        ArtifactError: The list is missing or corrupt.
    """
    numbers = sorted(_read_list(Path(root) / DENSE, version).files)
    paths = [*(_tensor_path(Path(DENSE), number) for number in numbers), _list_path(Path(DENSE), version)]
    return [path.as_posix() for path in paths]


def _is_same(one: NDArray[Any] | None, other: NDArray[Any]) -> bool:
    """Compare bytes, so that NaN equals NaN and 0 differs from -0."""
    if one is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    return np.array_equal(one.reshape(-1).view(np.uint8), other.reshape(-1).view(np.uint8))


def _record(path: Path) -> tuple[int, int]:
    content = path.read_bytes()
    return len(content), _native.crc32c(content)


def _encode(found: _List) -> bytes:
    files = {str(number): {"bytes": size, "crc32c": checksum} for number, (size, checksum) in found.files.items()}
    return seal({"format": _FORMAT, "version": _VERSION, "tensors": dict(found.tensors), "files": files})


def _read_list(folder: Path, version: int) -> _List:
    path = _list_path(folder, version)
    try:
        body = unseal(path.read_bytes())
    except FileNotFoundError as error:
        raise ArtifactError(f"'{path}' is missing: the cut has no dense weights; publish again") from error
    except ValueError as error:
        raise ManifestInvalid(f"'{path}' is corrupt: {error}; publish again") from error
    if body.get("format") != _FORMAT or body.get("version") != _VERSION:
        raise VersionConflict(
            f"'{path}' is {body.get('format')!r} version {body.get('version')}, expected {_FORMAT!r} version "
            f"{_VERSION}; use the release that wrote it"
        )
    files = {int(number): (each["bytes"], each["crc32c"]) for number, each in body["files"].items()}
    return _List(body["tensors"], files)


def _numbers(folder: Path) -> list[int]:
    found = (_NAME.fullmatch(entry) for entry in os.listdir(folder))
    return sorted(int(match[1]) for match in found if match)


def _tensor_path(folder: Path, version: int) -> Path:
    return folder / f"dense-{version:020d}.safetensors"


def _list_path(folder: Path, version: int) -> Path:
    return folder / f"dense-{version:020d}.json"
