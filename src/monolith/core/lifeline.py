"""``Lifeline``: a pipe from the process that starts a job to the job's processes. When the starter dies, they end too.

Only the starter holds the write end of the pipe, so the system closes it however the starter dies. No byte is written.
This works for children of any program and needs no polling.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from monolith.core.errors import ConfigError

__all__ = ["GRACE_S", "VARIABLE", "Lifeline", "end_with_starter"]

logger = logging.getLogger(__name__)

VARIABLE = "MONOLITH_LIFELINE"
"""Environment variable with the descriptor of the read end."""

GRACE_S = 30.0
"""Seconds that a process gets to end by itself after the request."""


class Lifeline:
    """The write end of the starter. ``close`` makes the watching processes end. Also a context manager."""

    def __init__(self) -> None:
        self._held, self._kept = os.pipe()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors that a child must inherit, for ``subprocess``."""
        return (self._held,)

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a child."""
        return {**environment, VARIABLE: str(self._held)}

    def close(self) -> None:
        """Close the pipe. May be called twice."""
        for descriptor in {self._held, self._kept} - {-1}:
            os.close(descriptor)
        self._held = self._kept = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def end_with_starter(
    environment: Mapping[str, str],
    *,
    patience_s: float = 0.0,
    grace_s: float = GRACE_S,
    ask: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM),
    end: Callable[[], None] = lambda: os._exit(1),
) -> threading.Thread | None:
    """Start a thread that ends this process when its starter dies; return it, or None without a lifeline.

    Args:
        environment: The environment of this process.
        patience_s: How long this process runs without its starter before it is asked to end.
        grace_s: How long this process may take to end by itself after that.
        ask: Asks this process to end.
        end: Ends this process.

    Raises:
        ConfigError: The variable does not name an open descriptor.
    """
    named = environment.get(VARIABLE)
    if named is None:
        return None
    try:
        descriptor = int(named)
        os.set_inheritable(descriptor, False)  # children of this process must not hold the pipe
    except (ValueError, OSError) as error:
        raise ConfigError(f"{VARIABLE} is {named!r}, expected an open pipe ({error}); unset it") from error

    def watch() -> None:
        while os.read(descriptor, 1):
            pass
        logger.warning("starter process died, ending this process pid=%d", os.getpid())
        pause = threading.Event()
        pause.wait(patience_s)
        ask()
        pause.wait(grace_s)
        end()

    watcher = threading.Thread(target=watch, name="lifeline", daemon=True)
    watcher.start()
    return watcher
