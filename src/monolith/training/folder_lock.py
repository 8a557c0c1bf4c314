"""``lock_folder``: lets one process at a time train in a model folder.

The lock is an advisory lock on the folder itself, so it ends with the process, however the process ends. A small file
in the folder names the owner for the error of the next process. On file systems without such locks, nothing is locked.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from monolith.core.clock import Clock, Deadline, SystemClock
from monolith.core.errors import ConfigError

__all__ = ["lock_folder"]

_OWNER_FILE = "running.json"
_POLL_S = 0.2


@contextmanager
def lock_folder(folder: Path, *, wait_s: float = 0.0, clock: Clock | None = None) -> Iterator[None]:
    """Hold the lock of a model folder; create the folder, and remove it if it is empty at the end.

    Args:
        folder: The model folder.
        wait_s: How long to wait for another owner, such as a process that is about to exit.
        clock: Measures the wait.

    Raises:
        ConfigError: Another process holds the lock, and the text names that process; or the folder cannot be made.
    """
    was_there = folder.is_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"model_dir is '{folder}', expected a folder, or a path where one can be made ({error.strerror}); give "
            "another --model-dir"
        ) from error
    handle = os.open(folder, os.O_RDONLY)
    owner = folder / _OWNER_FILE
    try:
        _lock(handle, folder, Deadline(clock or SystemClock(), wait_s))
        _write_owner(owner)
        yield
    finally:
        if _is_own(owner):
            owner.unlink(missing_ok=True)
        if not was_there:
            with suppress(OSError):  # the training has written to it
                folder.rmdir()
        os.close(handle)


def _lock(handle: int, folder: Path, deadline: Deadline) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno in (errno.ENOTSUP, errno.ENOLCK, errno.EINVAL):
                return  # no locks on this file system
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            if deadline.is_past:
                raise ConfigError(
                    f"model_dir '{folder}' is in use by {_describe_owner(folder / _OWNER_FILE)}, expected a folder "
                    "that no other training uses; stop that process, or give another --model-dir"
                ) from None
        time.sleep(_POLL_S)


def _write_owner(path: Path) -> None:
    body = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    temporary = path.with_name(f"{path.name}.tmp-{secrets.token_hex(8)}")
    temporary.write_text(json.dumps(body) + "\n")
    temporary.replace(path)


def _read_owner(path: Path) -> dict[str, object]:
    try:
        body = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}


def _is_own(path: Path) -> bool:
    owner = _read_owner(path)
    return (owner.get("pid"), owner.get("host")) == (os.getpid(), socket.gethostname())


def _describe_owner(path: Path) -> str:
    owner = _read_owner(path)
    if not owner:
        return "another process"
    return f"process {owner.get('pid')} on {owner.get('host')} since {owner.get('since')}"
