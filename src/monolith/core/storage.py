"""Files by path or URL: opens, measures, finds, and writes them whole or not at all.

Local paths use the operating system; ``scheme://`` URLs use fsspec. Only this module imports fsspec, at the first URL.
Listings of a URL never come from a cache, because other processes write there. Thread safe.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from monolith.core.errors import ConfigError

__all__ = [
    "NewFile",
    "download_file",
    "file_bytes",
    "find_files",
    "has_wildcard",
    "is_file",
    "is_folder",
    "is_url",
    "list_names",
    "make_folder",
    "normalize_url",
    "open_file",
    "read_file",
    "read_up_to",
    "remove_file",
    "remove_folder",
    "upload_file",
    "walk_files",
]

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
"""One slash is enough: ``hdfs:/data`` is a path on the default host, and ``Path`` drops the second slash."""
_ROOTED = frozenset({"file", "hdfs", "local", "viewfs", "webhdfs"})
"""Schemes whose URLs may have no host, so ``scheme:/path`` stands for ``scheme:///path``."""
_PACKAGES = {
    "abfs": "adlfs",
    "abfss": "adlfs",
    "adl": "adlfs",
    "az": "adlfs",
    "gcs": "gcsfs",
    "gs": "gcsfs",
    "hdfs": "pyarrow",
    "http": "aiohttp",
    "https": "aiohttp",
    "oss": "ossfs",
    "s3": "s3fs",
    "s3a": "s3fs",
    "sftp": "paramiko",
}
"""Scheme to the package of its fsspec driver."""


_OBJECT_STORES = frozenset({"abfs", "abfss", "az", "gcs", "gs", "oss", "s3", "s3a"})


def is_url(path: str) -> bool:
    """Return whether ``path`` names a file through fsspec.

    >>> is_url("s3://bucket/part-0"), is_url("hdfs:/data/part-0"), is_url("data/part-0")
    (True, True, False)
    """
    return _URL.match(path) is not None


def normalize_url(url: str) -> str:
    """Return a URL with two slashes after the scheme and none at the end.

    >>> normalize_url("hdfs:/data/"), normalize_url("s3:/bucket/run"), normalize_url("s3://bucket/run")
    ('hdfs:///data', 's3://bucket/run', 's3://bucket/run')
    """
    match = _URL.match(url)
    if match is None:
        return url
    rest = url[match.end() :]
    if rest.startswith("/"):
        return url.rstrip("/")
    return f"{match[1]}:{'///' if match[1].lower() in _ROOTED else '//'}{rest}".rstrip("/")


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


def read_file(path: str) -> bytes | None:
    """Return the content of a small file; None if the file is absent."""
    try:
        if is_url(path):
            system, inner = _remote(path)
            return bytes(system.cat_file(inner))
        return Path(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def upload_file(source: Path, url: str) -> None:
    """Copy a local file to a URL. An interrupted upload may leave a part of the file on some systems."""
    system, inner = _remote(url)
    system.put_file(str(source), inner)


def download_file(url: str, target: Path) -> None:
    """Copy a file from a URL to a local path. An interrupted download leaves a part of the file.

    Raises:
        OSError: The file is absent.
    """
    system, inner = _remote(url)
    system.get_file(inner, str(target))


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
    """Make a folder, and those above it, unless it is there. Object stores have none, and a bucket is never made."""
    if is_url(path):
        if normalize_url(path).partition(":")[0].lower() in _OBJECT_STORES:
            return
        system, inner = _remote(path)
        system.makedirs(inner, exist_ok=True)
    else:
        os.makedirs(path, exist_ok=True)


def walk_files(folder: str) -> list[str]:
    """Return every file under a folder, hidden ones too, by its name relative to the folder, sorted."""
    if is_url(folder):
        system, inner = _remote(folder)
        system.invalidate_cache()
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
        system.invalidate_cache()
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


def remove_folder(path: str) -> None:
    """Remove a folder with its files; do nothing if the folder is absent."""
    if is_url(path):
        system, inner = _remote(path)
        system.invalidate_cache()
        with contextlib.suppress(FileNotFoundError):
            system.rm(inner, recursive=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


class _Target(Protocol):
    def close(self) -> None: ...

    def publish(self) -> None: ...

    def discard(self) -> None: ...

    def write(self, data: bytes) -> None: ...


class NewFile:
    """Writes a file under a temporary name, and renames it when it is complete.

    A pipe or a device, such as ``/dev/null``, receives the bytes directly: a rename would replace it with a file.

    Raises:
        OSError: The path is a folder, or its folder is absent; the text names the path.
    """

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
        if self._path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self._is_stream = _is_stream(self._path)
        self._temporary = self._path.with_name(f"{self._path.name}-tmp-{secrets.randbits(64)}")
        with self._naming_path():
            place, mode = (self._path, "ab") if self._is_stream else (self._temporary, "xb")
            self._file = cast(BinaryIO, open(place, mode))  # noqa: SIM115 - closed by close or discard

    def write(self, data: bytes) -> None:
        with self._naming_path():
            self._file.write(data)

    def close(self) -> None:
        if not self._file.closed:
            with self._naming_path():
                self._file.flush()
                if not self._is_stream:
                    os.fsync(self._file.fileno())
                self._file.close()

    @contextlib.contextmanager
    def _naming_path(self) -> Iterator[None]:
        """Name the file in an error of an open file, such as a full disk: the system gives a number only."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def publish(self) -> None:
        if not self._is_stream:
            os.replace(self._temporary, self._path)

    def discard(self) -> None:
        with contextlib.suppress(OSError):  # buffered bytes may fail to be written again
            self._file.close()
        if not self._is_stream:
            self._temporary.unlink(missing_ok=True)


def _is_stream(path: Path) -> bool:
    """Return whether a path is a pipe, a device, or a name of an open file, such as ``/dev/stdout``."""
    if not path.exists():
        return False
    folder = str(path.parent.resolve())
    return not path.is_file() or folder == "/dev" or folder.startswith("/proc/")


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
        try:
            self._system.mv(self._temporary, self._path)
        except OSError:
            if not self._system.exists(self._path) or not self._system.exists(self._temporary):
                raise
            self._system.rm_file(self._path)  # HDFS does not rename over an existing file
            self._system.mv(self._temporary, self._path)

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        if self._system.exists(self._temporary):
            self._system.rm(self._temporary)


def _remote(path: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it.

    Raises:
        ConfigError: The scheme is unknown, its driver is not installed, or the driver refuses the URL.
    """
    try:
        import fsspec  # type: ignore[import-untyped]
    except ImportError as exc:
        raise ConfigError(f"{path!r} is a URL, which needs fsspec; pip install 'monolith[fsspec]'") from exc
    url = normalize_url(path)
    scheme = url.partition(":")[0].lower()
    try:
        system, inner = fsspec.core.url_to_fs(url)
    except ImportError as exc:
        package = _PACKAGES.get(scheme)
        remedy = f"pip install {package}" if package else "install its driver"
        raise ConfigError(f"{path!r} has the scheme {scheme!r}, whose driver is missing ({exc}); {remedy}") from exc
    except ValueError as exc:
        raise ConfigError(
            f"{path!r} has the scheme {scheme!r}, expected one that fsspec knows, such as s3, gs or hdfs ({exc})"
        ) from exc
    return system, str(inner)
