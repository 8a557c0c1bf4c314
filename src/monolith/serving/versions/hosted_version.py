"""A loaded version and the count of requests that use it, so that it closes after the last one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from monolith.rpc.status import Code
from monolith.serving.versions.loaded_model import LoadedModel

__all__ = ["HostedVersion", "State", "VersionStatus"]


class State(IntEnum):
    """State of a version; the numbers are TensorFlow Serving's."""

    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


class VersionStatus:
    """State of a version as reported to clients."""

    __slots__ = ("code", "message", "state", "version")

    def __init__(self, version: int, state: State, code: Code = Code.OK, message: str = "") -> None:
        self.version = version
        self.state = state
        self.code = code
        self.message = message

    def __repr__(self) -> str:
        return f"VersionStatus({self.version}, {self.state.name}, {self.code.name}, {self.message!r})"


class HostedVersion:
    """A loaded version. Thread safe. After ``enter``, use it as a context manager for one request.

    Args:
        name: Name of the model.
        version: Number of the version.
        path: Folder of the version.
        model: The loaded model.
        log_rate: Share of requests to log.
        log_prefix: Path prefix of the log files.
    """

    def __init__(
        self,
        name: str,
        version: int,
        path: Path,
        model: LoadedModel,
        *,
        log_rate: float | None = None,
        log_prefix: str = "",
    ) -> None:
        self.name = name
        self.version = version
        self.path = path
        self.model = model
        self.log_rate = log_rate
        self.log_prefix = log_prefix
        self._lock = threading.Lock()
        self._users = 0
        self._when_unused: Callable[[], None] | None = None

    def enter(self) -> bool:
        """Count one request in; return False if the version is retired."""
        with self._lock:
            if self._when_unused is not None:
                return False
            self._users += 1
            return True

    def leave(self) -> None:
        """Count one request out; after the last one of a retired version, call its callback."""
        with self._lock:
            self._users -= 1
            callback = self._when_unused if not self._users else None
        if callback is not None:
            callback()

    def retire(self, when_unused: Callable[[], None]) -> None:
        """Refuse new requests, and call ``when_unused`` once after the last current request."""
        with self._lock:
            self._when_unused = when_unused
            is_unused = not self._users
        if is_unused:
            when_unused()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
