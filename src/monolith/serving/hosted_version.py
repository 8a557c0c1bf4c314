"""One version of a model while it is loaded: who uses it, and when it may be let go."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from monolith.rpc.status import Code
from monolith.serving.loaded_model import LoadedModel

__all__ = ["HostedVersion", "State", "VersionStatus"]


class State(IntEnum):
    """Where a version is on its way; the numbers are TensorFlow Serving's."""

    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


class VersionStatus:
    """What is told of a version."""

    __slots__ = ("code", "message", "state", "version")

    def __init__(self, version: int, state: State, code: Code = Code.OK, message: str = "") -> None:
        self.version = version
        self.state = state
        self.code = code
        self.message = message

    def __repr__(self) -> str:
        return f"VersionStatus({self.version}, {self.state.name}, {self.code.name}, {self.message!r})"


class HostedVersion:
    """A loaded version. As a context manager it is one request's hold on it, after ``enter``.

    Args:
        name: The model's name.
        version: Which version.
        path: Where it was loaded from.
        model: The loaded model.
        log_rate: Share of the requests that are logged.
        log_prefix: Begin of the names of the log's files.
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
        """Take hold of it for one request; False when it is on its way out."""
        with self._lock:
            if self._when_unused is not None:
                return False
            self._users += 1
            return True

    def leave(self) -> None:
        """End one hold; the last one of a retired version lets it go."""
        with self._lock:
            self._users -= 1
            callback = self._when_unused if not self._users else None
        if callback is not None:
            callback()

    def retire(self, when_unused: Callable[[], None]) -> None:
        """Refuse new requests, and call ``when_unused`` once after the last one that is under way; now if none is."""
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
