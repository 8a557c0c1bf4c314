"""Files that survive a crash: written whole, synced, and sealed with a checksum.

Local files only; :mod:`monolith.core.storage` also opens URLs.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from monolith import _native
from monolith.core.throttle import yield_gil

__all__ = [
    "make_folder",
    "only_writer",
    "replace_file",
    "replace_folder",
    "seal",
    "sync_folder",
    "unseal",
    "write_synced",
]

_RENAME_EXCHANGE = 2
_CURRENT_FOLDER = -100


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and sync it to disk.

    Raises:
        OSError: The file cannot be written; the text names it, unlike the system's error for a full disk.
    """
    try:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Create a folder with its missing parents, and sync the parent of each: the folder survives a power loss.

    Raises:
        OSError: A folder could not be created or synced. A folder that was not synced is removed again, because the
            next call would take it for a safe one.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        try:
            sync_folder(path.parent)
        except OSError:
            with suppress(OSError):  # another process uses it
                path.rmdir()
            raise
    folder.mkdir(exist_ok=True)  # raises if a file has the name


def replace_file(path: Path, content: bytes) -> None:
    """Replace the content of a file atomically. After the call returns, the content survives a power loss."""
    temporary = path.with_name(f"{path.name}.tmp-{secrets.token_hex(8)}")
    try:
        write_synced(temporary, content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def replace_folder(source: Path, target: Path) -> None:
    """Rename a folder. If the target exists, exchange both in one step: the earlier folder is at ``source`` then.

    The caller syncs the parent folder.
    """
    if not target.exists():
        source.rename(target)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.renameat2(
        _CURRENT_FOLDER, os.fsencode(source), _CURRENT_FOLDER, os.fsencode(target), ctypes.c_uint(_RENAME_EXCHANGE)
    )
    if done == 0:
        return
    if (code := ctypes.get_errno()) not in (errno.EINVAL, errno.ENOSYS):
        raise OSError(code, os.strerror(code), str(target))
    aside = source.parent / f".removed-{secrets.token_hex(8)}"  # the file system has no exchange
    target.rename(aside)
    try:
        source.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    aside.rename(source)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the folder's exclusive lock; other writers, of this process or another, wait."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


_HEAD = b'{"body": '
_LINE_START = re.compile(rb"\n *")


def seal(body: dict[str, Any]) -> bytes:
    """Return the bytes of a JSON file with a checksum.

    The encoding of a body is unique, so every changed byte is detected, except in the indentation.
    """
    checksum = _native.crc32c(json.dumps(body, sort_keys=True).encode())
    return json.dumps({"body": body, "crc32c": checksum}, sort_keys=True, indent=1).encode() + b"\n"


def unseal(content: bytes) -> dict[str, Any]:
    """Return the body of a sealed file.

    Raises:
        ValueError: ``seal`` did not write ``content``; the text gives the reason.
    """
    try:
        body = json.loads(content)["body"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"not a manifest ({error})") from error
    yield_gil()
    head, _, checksum = _one_line(content).rpartition(b', "crc32c": ')
    yield_gil()
    is_sealed = head.startswith(_HEAD) and content.endswith(b"\n}\n")
    if not is_sealed or checksum != b"%d}" % _native.crc32c(head[len(_HEAD) :]):
        raise ValueError("checksum does not match")
    if not isinstance(body, dict):
        raise ValueError("the body is not an object")
    return body


def _one_line(content: bytes) -> bytes:
    """Return JSON that ``seal`` has written as ``json.dumps`` writes it without indentation.

    To write the body again takes several times as long, and a server reads manifests while it answers requests.
    """
    return _LINE_START.sub(b"", content.replace(b",\n", b", \n"))
