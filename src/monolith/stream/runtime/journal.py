"""``Journal``: the commits of a join, one small record each, durable when ``append`` returns.

A file begins with a header; each record is a u32 size, a u32 CRC32C and JSON. A crash may tear the last record; a
reader ignores a torn tail, because a commit counts from the return of ``append``. One thread uses a journal.
"""

from __future__ import annotations

import json
import logging
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monolith import _native
from monolith.core.durable_files import sync_folder
from monolith.core.errors import DataError

__all__ = ["Journal", "read_journal"]

logger = logging.getLogger(__name__)

_PREFIX = struct.Struct("<II")


class Journal:
    """An open journal file.

    Args:
        path: A new file.
        header: Written as the first record.

    Raises:
        FileExistsError: The file exists: another process started with the same owner number.
        OSError: The file cannot be written. It does not exist afterwards.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._size = 0
        self._is_failed = False
        try:
            self.append(header)
            sync_folder(path.parent)
        except BaseException:
            self.close()
            path.unlink(missing_ok=True)
            raise

    def append(self, record: Mapping[str, Any]) -> None:
        """Append a record and sync it.

        Raises:
            OSError: The disk is full. The journal is as before; the caller may try again.
            DataError: A sync failed. The state of the disk is unknown, so the process must restart.
        """
        if self._is_failed:
            raise DataError(f"journal '{self.path}' is failed, expected a sound disk; check the disk and restart")
        body = json.dumps(record, separators=(",", ":")).encode()
        content = _PREFIX.pack(len(body), _native.crc32c(body)) + body
        try:
            written = 0
            while written < len(content):
                written += os.pwrite(self._file, content[written:], self._size + written)
        except OSError as error:
            os.ftruncate(self._file, self._size)
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        try:
            os.fdatasync(self._file)
        except OSError as error:
            self._is_failed = True
            raise DataError(f"journal '{self.path}' cannot be synced: {error}; check the disk and restart") from error
        self._size += len(content)

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return the records of a journal file up to a torn tail, the header first."""
    content = path.read_bytes()
    records = []
    at = 0
    while at + _PREFIX.size <= len(content):
        size, checksum = _PREFIX.unpack_from(content, at)
        body = content[at + _PREFIX.size : at + _PREFIX.size + size]
        if len(body) < size or _native.crc32c(body) != checksum:
            break
        records.append(json.loads(body))
        at += _PREFIX.size + size
    if at < len(content):
        logger.warning("journal tail ignored path=%s byte=%d bytes=%d", path, at, len(content) - at)
    return records
