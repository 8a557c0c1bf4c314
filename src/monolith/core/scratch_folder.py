"""``ScratchFolder``: a private temporary folder. A later process removes those of processes that were killed."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path
from types import TracebackType

__all__ = ["ScratchFolder"]

logger = logging.getLogger(__name__)

_YOUNG_S = 60.0
"""Age below which a folder may belong to a process that is about to lock it."""


class ScratchFolder:
    """A folder that exists until it is closed or the process ends. As a context manager, it gives its path.

    The process locks the parent of the folder, and the system releases the lock however the process ends. The next
    ScratchFolder with the same prefix removes those of this user that no process locks.

    Args:
        prefix: Start of the parent's name.

    >>> with ScratchFolder("example-") as folder:
    ...     folder.is_dir()
    True
    >>> folder.exists()
    False
    """

    def __init__(self, prefix: str) -> None:
        _remove_dead(prefix)
        parent = Path(tempfile.mkdtemp(prefix=prefix))
        self._finalizer = weakref.finalize(self, _close, parent, _lock(parent), os.getpid())
        self.path = parent / "files"  # a writer of files may lock it
        self.path.mkdir()

    def close(self) -> None:
        """Remove the folder. A second call does nothing."""
        self._finalizer()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _lock(folder: Path) -> int:
    """Lock a folder until the returned descriptor is closed.

    Raises:
        BlockingIOError: Another process holds the lock.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _close(folder: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # not a forked child that exits
        _remove(folder, lock)


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _remove_dead(prefix: str) -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            stat = path.stat(follow_symlinks=False)
            if stat.st_uid == os.getuid() and time.time() - stat.st_mtime > _YOUNG_S:
                _remove(path, _lock(path))
                logger.info("folder of a killed process removed path=%s", path)
        except BlockingIOError:
            pass  # its process lives
        except OSError as error:  # removed meanwhile, or not a folder
            logger.debug("folder not removed path=%s error=%s", path, error)
