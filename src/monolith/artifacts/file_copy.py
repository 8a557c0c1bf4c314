"""Copy files and folders between local paths and URLs, in parallel and with retries. Each file is complete or absent.

:mod:`monolith.core.storage` opens both kinds of paths.
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
"""Errors that a retry cannot fix."""


def copy_file(
    source: str,
    target: str,
    *,
    overwrite: bool = True,
    skip_missing: bool = False,
    policy: RetryPolicy | None = None,
    clock: Clock | None = None,
) -> bool:
    """Copy one file atomically.

    Args:
        source: Path or URL of the file.
        target: New path in an existing folder.
        overwrite: Whether to replace an existing target.
        skip_missing: Return False for a missing source instead of raising.
        policy: Retries of I/O errors; the default is 5 attempts.
        clock: Clock of the pauses.

    Returns:
        Whether the file was copied; False only for a missing source with ``skip_missing``.

    Raises:
        ConfigError: The target exists and ``overwrite`` is False.
        OSError: The source is missing or unreadable, or the target is not writable.
        RetriesExhausted: Every attempt failed.
    """
    if not overwrite and storage.is_file(target):
        raise ConfigError(f"{target} exists; give another name, or allow overwriting")
    try:
        retry(policy or RetryPolicy(), lambda: _copy_once(source, target), clock=clock, is_retryable=_is_passing)
    except FileNotFoundError:
        if skip_missing and not storage.is_file(source):
            logger.info("copy skipped, source missing source=%s", source)
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
    """Make ``target`` a copy of the folder ``source`` with its subfolders; return the number of files.

    Surplus files of the target are removed last. With ``skip_missing``, files that disappear from the source meanwhile
    are omitted. Empty folders are not copied.

    Args:
        source: Path or URL of the folder.
        target: New path; created if missing.
        workers: Number of files copied in parallel.
        skip_missing: Return 0 for a missing source instead of raising.
        policy: Retries of I/O errors, per file.
        clock: Clock of the pauses.

    Raises:
        ConfigError: ``source`` is not a folder, or one folder contains the other.
        OSError: As in ``copy_file``. The copy is incomplete, but each of its files is complete; copy again.
    """
    if workers < 1:
        raise ConfigError(f"workers is {workers!r}, expected at least 1")
    source, target = source.rstrip("/") or "/", target.rstrip("/") or "/"
    if source == target or source.startswith(f"{target}/") or target.startswith(f"{source}/"):
        raise ConfigError(f"target is {target}, expected a folder outside of {source}")
    if not storage.is_folder(source):
        if skip_missing:
            logger.info("copy skipped, source missing source=%s", source)
            return 0
        raise ConfigError(f"source is {source}, expected an existing folder")
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
