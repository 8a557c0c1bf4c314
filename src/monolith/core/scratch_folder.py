"""``ScratchFolder``: a private temporary folder. A later process removes those of processes that were killed."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
import time
import weakref
from contextlib import suppress
from pathlib import Path
from types import TracebackType

__all__ = ["ScratchFolder"]

logger = logging.getLogger(__name__)

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
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
        handle = os.open(parent, _FOLDER)
        self._finalizer = weakref.finalize(self, _close, parent, handle, os.getpid())
        with suppress(OSError):  # where no process can lock it, none removes it either
            _lock(handle)
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


def _lock(handle: int) -> None:
    """Lock a folder until its descriptor is closed; raise OSError if another process holds the lock."""
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _close(folder: Path, handle: int, owner: int) -> None:
    if os.getpid() == owner:  # not a forked child that exits
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _remove_dead(prefix: str) -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            stat = path.stat(follow_symlinks=False)
            if stat.st_uid == os.getuid() and time.time() - stat.st_mtime > _YOUNG_S:
                _remove_unlocked(path)
        except OSError as error:  # its process lives, it was removed meanwhile, or it is not a folder
            logger.debug("folder not removed path=%s error=%s", path, error)


def _remove_unlocked(folder: Path) -> None:
    handle = os.open(folder, _FOLDER)
    try:
        _lock(handle)
        shutil.rmtree(folder)
        logger.info("folder of a killed process removed path=%s", folder)
    finally:
        os.close(handle)
