"""Files that survive a crash: written whole, synced, and sealed with a checksum of their own.

Local files only; :mod:`monolith.core.storage` opens files anywhere. What a file means, nothing here knows.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from monolith import _native
from monolith.core.throttle import yield_gil

__all__ = ["only_writer", "replace_file", "seal", "sync_folder", "unseal", "write_synced"]


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and wait until the disk has it.

    Raises:
        OSError: It cannot be written; the text names it, which that of a full disk does not do by itself.
    """
    try:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in a folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_file(path: Path, content: bytes) -> None:
    """Give a file new content, whole or not at all; after return it survives a crash."""
    temporary = path.with_name(f"{path.name}.tmp-{secrets.token_hex(8)}")
    try:
        write_synced(temporary, content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Keep other writers, of this process or another, out of the folder; they wait."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def seal(body: dict[str, Any]) -> bytes:
    """Return a JSON file's bytes.

    There is only one spelling of a body, so a changed byte cannot go unseen, unless it was one of the indentation.
    """
    checksum = _native.crc32c(json.dumps(body, sort_keys=True).encode())
    return json.dumps({"body": body, "crc32c": checksum}, sort_keys=True, indent=1).encode() + b"\n"


def unseal(content: bytes) -> dict[str, Any]:
    """Return the body that was sealed.

    Raises:
        ValueError: It is not what ``seal`` wrote; the text says why.
    """
    try:
        body = json.loads(content)["body"]
        yield_gil()
        compact = json.dumps(body, sort_keys=True)
        yield_gil()
        checksum = _native.crc32c(compact.encode())
        spelled = f'{{"body": {compact}, "crc32c": {checksum}}}'.encode()
        is_sound = content.endswith(b"\n}\n") and _one_line(content) == spelled
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"not a manifest ({error})") from error
    if not is_sound:
        raise ValueError("checksum does not match")
    if not isinstance(body, dict):
        raise ValueError("the body is not an object")
    return body


def _one_line(content: bytes) -> bytes:
    """Return JSON as ``json.dumps`` writes it without indentation.

    The other way round, ``json.dumps`` with indentation, takes several times as long, and a server reads manifests
    while it answers requests.
    """
    return b"".join([line.lstrip(b" ") for line in content.replace(b",\n", b", \n").split(b"\n")])
