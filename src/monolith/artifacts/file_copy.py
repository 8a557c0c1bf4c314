"""Copying of files and whole folders between any two places: retried, in parallel, each file whole or not at all.

Places are local paths or URLs; :mod:`monolith.core.storage` opens both. What is in a file, nothing here knows.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

from monolith.core import storage
from monolith.core.clock import Clock
from monolith.core.errors import ConfigError
from monolith.core.retry import RetryPolicy, retry

__all__ = ["copy_file", "copy_folder"]

logger = logging.getLogger(__name__)

_PIECE_BYTES = 4 << 20
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)
"""What another attempt cannot mend."""


def copy_file(
    source: str,
    target: str,
    *,
    overwrite: bool = True,
    skip_missing: bool = False,
    policy: RetryPolicy | None = None,
    clock: Clock | None = None,
) -> bool:
    """Copy one file; the target appears, or changes, when all of it is there.

    Args:
        source: A path or URL.
        target: Its new name, in a folder that exists.
        overwrite: Whether a target that exists is replaced.
        skip_missing: Whether a source that does not exist is no error.
        policy: How failures of the medium are retried; 5 attempts unless given.
        clock: What the pauses are measured by.

    Returns:
        Whether a file was copied; False only when it was missing and ``skip_missing``.

    Raises:
        ConfigError: The target exists and ``overwrite`` is False.
        OSError: The source is missing, or may not be read or the target not written.
        RetriesExhausted: Every attempt failed.
    """
    if not overwrite and storage.is_file(target):
        raise ConfigError(f"{target} exists; choose another name, or allow to overwrite")
    try:
        retry(policy or RetryPolicy(), lambda: _copy_once(source, target), clock=clock, is_retryable=_is_passing)
    except FileNotFoundError:
        if skip_missing and not storage.is_file(source):
            logger.info("nothing to copy source=%s", source)
            return False
        raise
    return True


def copy_folder(
    source: str,
    target: str,
    *,
    workers: int = 8,
    skip_missing: bool = False,
    policy: RetryPolicy | None = None,
    clock: Clock | None = None,
) -> int:
    """Make ``target`` a copy of the folder ``source``, with all folders in it, and return the number of files.

    Files of the target that the source has not are removed, last: at no moment is less there than before. Files that
    vanish from the source meanwhile are left out with ``skip_missing``. Empty folders are not copied.

    Args:
        source: A path or URL.
        target: Its new name; made when missing.
        workers: How many files are copied at a time.
        skip_missing: Whether a source that does not exist is no error; nothing happens then.
        policy: How failures of the medium are retried, per file.
        clock: What the pauses are measured by.

    Raises:
        ConfigError: ``source`` is no folder, or one of the two lies in the other.
        OSError: See ``copy_file``. The copy is then incomplete, each file of it whole; copy again.
    """
    if workers < 1:
        raise ConfigError(f"workers is {workers}; give a number from 1")
    source, target = source.rstrip("/") or "/", target.rstrip("/") or "/"
    if source == target or source.startswith(f"{target}/") or target.startswith(f"{source}/"):
        raise ConfigError(f"{source} and {target} lie in each other; choose another target")
    if not storage.is_folder(source):
        if skip_missing:
            logger.info("nothing to copy source=%s", source)
            return 0
        raise ConfigError(f"{source} is no folder; check the path")
    names = storage.walk_files(source)
    for folder in sorted({name.rpartition("/")[0] for name in names} | {""}):
        storage.make_folder(f"{target}/{folder}" if folder else target)

    def copy_one(name: str) -> bool:
        return copy_file(f"{source}/{name}", f"{target}/{name}", skip_missing=skip_missing, policy=policy, clock=clock)

    with ThreadPoolExecutor(workers, thread_name_prefix="copy") as pool:
        copied = sum(pool.map(copy_one, names))
    for name in set(storage.walk_files(target)) - set(names):
        storage.remove_file(f"{target}/{name}")
    return copied


def _copy_once(source: str, target: str) -> None:
    with storage.open_file(source) as file:
        new = storage.NewFile(target)
        try:
            while piece := file.read(_PIECE_BYTES):
                new.write(piece)
            new.publish()
        except BaseException:
            new.discard()
            raise


def _is_passing(error: Exception) -> bool:
    return isinstance(error, OSError) and not isinstance(error, _FINAL)
