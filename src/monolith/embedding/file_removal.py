"""Removal of large files without the wait for their space.

A file system can take a second or more per gigabyte to release the blocks of a removed file, for example with the mount
option ``discard``. ``remove_files`` removes the names immediately and releases the blocks in a background thread. An
open descriptor keeps the blocks until then, so a process that dies leaves no file behind: the kernel closes the
descriptor. All functions are safe to call from several threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

__all__ = ["remove_files", "wait_for_removals"]

LARGE_FILE_BYTES = 32 << 20
"""Smaller files are released by the caller: that takes less time than a thread."""

_handles: set[int] = set()
"""Descriptors of removed files that are still open."""
_threads: set[threading.Thread] = set()


def remove_files(files: Sequence[Path]) -> None:
    """Remove files, and release the space of large ones in a background thread. A missing file is skipped.

    Where the system starts no further thread, the caller releases the space.
    """
    handles: list[int] = []
    try:
        for file in files:
            if (handle := _open_large(file)) is not None:
                handles.append(handle)
            file.unlink(missing_ok=True)
    finally:
        if handles:
            thread = threading.Thread(target=_close_all, args=(handles,), name="file-removal", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                _close_all(handles)
            else:
                _threads.add(thread)  # not earlier: a thread that has not started cannot be joined


def wait_for_removals() -> None:
    """Wait until the space of all removed files is released."""
    for thread in list(_threads):
        thread.join()
        _threads.discard(thread)


def _open_large(file: Path) -> int | None:
    """Return a descriptor that keeps the space of the file, or None if the file is small or cannot be opened."""
    try:
        if file.stat().st_size < LARGE_FILE_BYTES:
            return None
        handle = os.open(file, os.O_RDONLY)
    except OSError:
        return None
    _handles.add(handle)
    return handle


def _close_all(handles: Sequence[int]) -> None:
    for handle in handles:
        # First: a process forked in between keeps the descriptor, where the other order could close another file.
        _handles.discard(handle)
        os.close(handle)
    _threads.discard(threading.current_thread())


def _close_in_child() -> None:
    """Close the descriptors that a forked process inherits: they would keep the space for its whole life."""
    for handle in list(_handles):
        os.close(handle)
    _handles.clear()
    _threads.clear()


os.register_at_fork(after_in_child=_close_in_child)
