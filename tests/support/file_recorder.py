"""``FileRecorder``: records syncs and renames, and computes which bytes of a file survive a power loss.

The model: a file's bytes survive if they were written before an ``os.fsync`` of the file. Its name survives if it was
in its folder at an ``os.fsync`` of the folder. Only calls through ``os`` in this process are seen, not native code.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

__all__ = ["FileRecorder"]


class FileRecorder:
    """Wraps ``os.fsync``, ``os.replace``, ``os.rename`` and ``os.unlink`` while a test runs.

    ``events`` lists the calls in order: ("sync", path), ("rename", source, target), ("remove", path).
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[str, ...]] = []
        self._bytes: dict[int, bytes] = {}  # inode -> content at its last sync
        self._names: dict[Path, dict[str, int]] = {}  # folder -> its names and inodes at its last sync
        self._fsync = os.fsync
        patch.setattr(os, "fsync", self._sync)
        for name, kind in (("replace", "rename"), ("rename", "rename"), ("unlink", "remove")):
            patch.setattr(os, name, self._wrap(kind, getattr(os, name)))

    def content_after_power_loss(self, path: Path) -> bytes | None:
        """Return the bytes under this name after a power loss now; None if the name is lost."""
        inode = self._names.get(path.parent, {}).get(path.name)
        return None if inode is None else self._bytes.get(inode, b"")

    def synced_content(self, path: Path) -> bytes | None:
        """Return the bytes of a file at its last sync, whether its name survives or not; None without a sync."""
        return self._bytes.get(path.stat().st_ino)

    def _sync(self, descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        path = Path(os.readlink(f"/proc/self/fd/{number}"))
        status = os.fstat(number)
        if stat.S_ISDIR(status.st_mode):
            self._names[path] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self._bytes[status.st_ino] = path.read_bytes()
        self.events.append(("sync", str(path)))
        self._fsync(number)

    def _wrap(self, kind: str, call: Any) -> Any:
        def record(*paths: Any, **options: Any) -> None:
            if kind == "remove":
                self._bytes.pop(os.stat(paths[0], follow_symlinks=False).st_ino, None)  # the inode may be reused
            call(*paths, **options)
            self.events.append((kind, *(str(os.fspath(path)) for path in paths)))

        return record
