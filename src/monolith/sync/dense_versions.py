"""Versions of the dense weights: a file of the tensors that changed, and a list that says where each tensor lies.

::

    dense/
      dense-00000000000000000007.safetensors    the tensors that version 7 changed
      dense-00000000000000000007.json           of every tensor: the version whose file has it; sizes and checksums

A reader that has some version reads only the files of the tensors that are new to it, whatever it has missed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith import _native
from monolith.artifacts.export_tensors import read_tensors, write_tensors
from monolith.core.durable_files import replace_file, seal, sync_folder, unseal
from monolith.core.errors import ArtifactError, ManifestInvalid, VersionConflict

__all__ = ["DENSE", "DenseReader", "DenseWriter", "version_files"]

DENSE = "dense"
_FORMAT = "monolith.dense"
_VERSION = 1
_NAME = re.compile(r"dense-(\d{20})\.json")
_KEPT = 8
"""Newest versions that can be read: who is about to read one must find it when another was published meanwhile."""

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class _List:
    tensors: Mapping[str, int]
    """Name to the version whose file has it."""
    files: Mapping[int, tuple[int, int]]
    """Version to size and checksum of its file."""


class DenseWriter:
    """The one writer of a folder of versions. Goes on counting where another one stopped.

    Args:
        root: What is published; the versions lie in a folder of it.
    """

    def __init__(self, root: str | PathLike[str]) -> None:
        self._folder = Path(root) / DENSE
        self._folder.mkdir(parents=True, exist_ok=True)
        for leftover in self._folder.glob("*.tmp*"):
            leftover.unlink()
        numbers = _numbers(self._folder)
        self.version = numbers[-1] if numbers else 0
        """The newest version; 0 before the first."""
        self._last: dict[str, NDArray[Any]] = {}
        self._list = _List({}, {})

    def write(self, weights: Arrays) -> int:
        """Write what differs from the last call, all of it in the first one; return the newest version.

        Args:
            weights: All tensors; they are kept, so nobody may change them afterwards.

        Raises:
            ConfigError: A tensor is of a type that no server has.
            OSError: The files could not be written; what changed comes with the next call.
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
        replace_file(_list_path(self._folder, version), _encoded(found))
        self.version, self._list, self._last = version, found, dict(weights)
        self._tidy_up()
        return version

    def _tidy_up(self) -> None:
        """Remove what none of the newest versions needs."""
        numbers = _numbers(self._folder)
        kept = numbers[-_KEPT:]
        needed = set(self._list.tensors.values()) | set(kept)
        for number in kept[:-1]:
            with suppress(ArtifactError):  # damaged: nobody can read that version
                needed |= set(_read_list(self._folder, number).tensors.values())
        for number in numbers[:-_KEPT]:
            _list_path(self._folder, number).unlink(missing_ok=True)
        for path in self._folder.glob("dense-*.safetensors"):
            if int(path.stem.removeprefix("dense-")) not in needed:
                path.unlink(missing_ok=True)
        sync_folder(self._folder)


class DenseReader:
    """Reads versions, each as its difference from the one before. Used by one thread.

    Args:
        root: What is published.
    """

    def __init__(self, root: str | PathLike[str]) -> None:
        self._folder = Path(root) / DENSE
        self._known: Mapping[str, tuple[int, int, int]] = {}

    def changes(self, version: int) -> tuple[dict[str, NDArray[Any]], Mapping[str, tuple[int, int, int]]]:
        """Return the tensors of a version that differ from those of ``known``, and what to hand to ``took``.

        Raises:
            ArtifactError: A file is missing or was altered.
        """
        found = _read_list(self._folder, version)
        stamps = {name: (number, *found.files[number]) for name, number in found.tensors.items()}
        wanted = {name: stamp for name, stamp in stamps.items() if self._known.get(name) != stamp}
        weights: dict[str, NDArray[Any]] = {}
        for number in sorted({stamp[0] for stamp in wanted.values()}):
            arrays = self._read(number, found.files[number])
            weights |= {name: arrays[name] for name, stamp in wanted.items() if stamp[0] == number}
        return weights, stamps

    def took(self, stamps: Mapping[str, tuple[int, int, int]]) -> None:
        """Remember that the tensors of a version are in use; the next ``changes`` are from there."""
        self._known = stamps

    def _read(self, number: int, record: tuple[int, int]) -> dict[str, NDArray[Any]]:
        path = _tensor_path(self._folder, number)
        try:
            if _record(path) != record:
                raise ManifestInvalid(f"'{path}' is not what was published: its size or checksum differs")
            return read_tensors(path)
        except FileNotFoundError as error:
            raise ArtifactError(f"'{path}' is gone: a newer version was published meanwhile; read that") from error


def version_files(root: str | PathLike[str], version: int) -> list[str]:
    """Return the names, within ``root``, of all files that a version needs; its list is the last.

    Raises:
        ArtifactError: The list is missing or was altered.
    """
    numbers = sorted(_read_list(Path(root) / DENSE, version).files)
    paths = [*(_tensor_path(Path(DENSE), number) for number in numbers), _list_path(Path(DENSE), version)]
    return [path.as_posix() for path in paths]


def _is_same(one: NDArray[Any] | None, other: NDArray[Any]) -> bool:
    """As bytes: a weight that is not a number is the same as itself, and 0 is not -0."""
    if one is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    return np.array_equal(one.reshape(-1).view(np.uint8), other.reshape(-1).view(np.uint8))


def _record(path: Path) -> tuple[int, int]:
    content = path.read_bytes()
    return len(content), _native.crc32c(content)


def _encoded(found: _List) -> bytes:
    files = {str(number): {"bytes": size, "crc32c": checksum} for number, (size, checksum) in found.files.items()}
    return seal({"format": _FORMAT, "version": _VERSION, "tensors": dict(found.tensors), "files": files})


def _read_list(folder: Path, version: int) -> _List:
    path = _list_path(folder, version)
    try:
        body = unseal(path.read_bytes())
    except FileNotFoundError as error:
        raise ArtifactError(f"'{path}' is missing: the dense weights of a cut are gone; publish again") from error
    except ValueError as error:
        raise ManifestInvalid(f"'{path}' cannot be believed: {error}; publish again") from error
    if body.get("format") != _FORMAT or body.get("version") != _VERSION:
        raise VersionConflict(
            f"'{path}' is {body.get('format')!r} of version {body.get('version')}, this release reads {_FORMAT!r} of "
            f"version {_VERSION}; use the one that wrote it"
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
