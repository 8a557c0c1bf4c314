"""Files by path or URL: opens, measures, finds, and writes them whole or not at all.

Local paths use the operating system; ``scheme://`` URLs use fsspec. Only this module imports fsspec, at the first URL.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import secrets
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from monolith.core.errors import ConfigError

__all__ = [
    "NewFile",
    "file_bytes",
    "find_files",
    "has_wildcard",
    "is_file",
    "is_folder",
    "is_url",
    "list_names",
    "make_folder",
    "open_file",
    "read_up_to",
    "remove_file",
    "walk_files",
]

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_url(path: str) -> bool:
    """Return whether ``path`` names a file through fsspec.

    >>> is_url("s3://bucket/part-0"), is_url("data/part-0")
    (True, False)
    """
    return _URL.match(path) is not None


def has_wildcard(path: str) -> bool:
    """Return whether ``path`` is a pattern.

    >>> has_wildcard("part-*.pb"), has_wildcard("part-0.pb")
    (True, False)
    """
    return glob.has_magic(path)


def open_file(path: str) -> BinaryIO:
    """Open a file for reading, unbuffered where the system allows: callers read large pieces.

    Raises:
        OSError: The file is absent, or cannot be read; the text names it.
    """
    if is_url(path):
        system, inner = _remote(path)
        return cast(BinaryIO, system.open(inner, "rb"))
    return open(path, "rb", buffering=0)


def read_up_to(file: BinaryIO, size: int) -> bytes:
    """Read ``size`` bytes, or all that are left: an unbuffered file may give fewer at a time."""
    parts = []
    while size > 0 and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def file_bytes(path: str) -> int:
    """Return the size of a file.

    Raises:
        OSError: The file is absent.
    """
    if is_url(path):
        system, inner = _remote(path)
        return int(system.size(inner))
    return os.stat(path).st_size


def is_file(path: str) -> bool:
    """Return whether a file (not a folder) has this name."""
    if is_url(path):
        system, inner = _remote(path)
        return bool(system.isfile(inner))
    return os.path.isfile(path)


def find_files(pattern: str) -> list[str]:
    """Return the files that match, sorted. ``**`` goes through folders; hidden files match no wildcard."""
    if is_url(pattern):
        system, inner = _remote(pattern)
        found = [str(system.unstrip_protocol(name)) for name in system.glob(inner) if system.isfile(name)]
    else:
        found = [name for name in glob.glob(pattern, recursive=True) if os.path.isfile(name)]
    return sorted(found)


def is_folder(path: str) -> bool:
    """Return whether a folder has this name."""
    if is_url(path):
        system, inner = _remote(path)
        return bool(system.isdir(inner))
    return os.path.isdir(path)


def make_folder(path: str) -> None:
    """Make a folder, and those above it, unless it is there."""
    if is_url(path):
        system, inner = _remote(path)
        system.makedirs(inner, exist_ok=True)
    else:
        os.makedirs(path, exist_ok=True)


def walk_files(folder: str) -> list[str]:
    """Return every file under a folder, hidden ones too, by its name relative to the folder, sorted."""
    if is_url(folder):
        system, inner = _remote(folder)
        root = inner.rstrip("/") + "/"
        found = [str(name).removeprefix(root) for name in system.find(inner)]
    else:
        found = [
            os.path.relpath(os.path.join(place, name), folder).replace(os.sep, "/")
            for place, _, names in os.walk(folder, followlinks=True)
            for name in names
        ]
    return sorted(found)


def list_names(folder: str) -> list[str]:
    """Return the names of the files and folders directly in a folder, sorted; none if there is no such folder."""
    if is_url(folder):
        system, inner = _remote(folder)
        if not system.isdir(inner):
            return []
        return sorted({str(name).rstrip("/").rpartition("/")[2] for name in system.ls(inner, detail=False)})
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def remove_file(path: str) -> None:
    """Remove a file.

    Raises:
        OSError: The file is absent.
    """
    if is_url(path):
        system, inner = _remote(path)
        if not system.exists(inner):  # file systems raise different errors
            raise FileNotFoundError(f"{path} does not exist")
        system.rm_file(inner)
    else:
        os.remove(path)


class _Target(Protocol):
    def close(self) -> None: ...

    def publish(self) -> None: ...

    def discard(self) -> None: ...

    def write(self, data: bytes) -> None: ...


class NewFile:
    """Writes a file under a temporary name, and renames it when it is complete."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._target: _Target = _RemoteTarget(path) if is_url(path) else _LocalTarget(path)

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self._target.write(data)

    def publish(self) -> None:
        """Close the file and rename it to its name, replacing an earlier file."""
        self._target.close()
        self._target.publish()

    def discard(self) -> None:
        """Close and remove the temporary file."""
        self._target.discard()


class _LocalTarget:
    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._temporary = self._path.with_name(f"{self._path.name}-tmp-{secrets.randbits(64)}")
        self._file: BinaryIO = open(self._temporary, "xb")  # noqa: SIM115 - closed by close or discard

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def close(self) -> None:
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def publish(self) -> None:
        os.replace(self._temporary, self._path)

    def discard(self) -> None:
        with contextlib.suppress(OSError):  # buffered bytes may fail to be written again
            self._file.close()
        self._temporary.unlink(missing_ok=True)


class _RemoteTarget:
    def __init__(self, path: str) -> None:
        self._system, self._path = _remote(path)
        self._temporary = f"{self._path}-tmp-{secrets.randbits(64)}"
        self._file: Any = self._system.open(self._temporary, "wb")

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def close(self) -> None:
        self._file.close()

    def publish(self) -> None:
        self._system.mv(self._temporary, self._path)

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        if self._system.exists(self._temporary):
            self._system.rm(self._temporary)


def _remote(path: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it."""
    try:
        import fsspec  # type: ignore[import-untyped]
    except ImportError as exc:
        raise ConfigError(f"{path} is a URL, which needs fsspec: pip install 'monolith[fsspec]'") from exc
    try:
        system, inner = fsspec.core.url_to_fs(path)
    except (ValueError, ImportError) as exc:  # an unknown scheme, or one whose client is not installed
        raise ConfigError(f"{path} cannot be opened: {exc}") from exc
    return system, str(inner)
