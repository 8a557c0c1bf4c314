"""A pipe between the process that started a job and the processes of the job: when the one is gone, so are the others.

The end of the pipe that is written to belongs to the starter alone, so the system closes it however the starter dies;
nothing is ever written. Works wherever there are pipes, for children of any program, and needs no polling.
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
"""Tells a process the number of its end of the pipe."""

GRACE_S = 30.0
"""How long a process may take to end by itself when it is asked to."""


class Lifeline:
    """The starter's end; ``close`` lets all go who hold the other one. Also a context manager."""

    def __init__(self) -> None:
        self._held, self._kept = os.pipe()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What a child is to inherit, for ``subprocess``."""
        return (self._held,)

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a child."""
        return {**environment, VARIABLE: str(self._held)}

    def close(self) -> None:
        """Let go; a second call does nothing."""
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
    """Watch for the end of the process that started this one; return who watches, None where nobody asked for it.

    Args:
        environment: This process's variables.
        patience_s: How long this process goes on without its starter.
        grace_s: How long it may take to end by itself when it is asked to.
        ask: Asks it to end.
        end: Ends it.

    Raises:
        ConfigError: The variable names no open descriptor.
    """
    named = environment.get(VARIABLE)
    if named is None:
        return None
    try:
        descriptor = int(named)
        os.set_inheritable(descriptor, False)  # it is between these two processes
    except (ValueError, OSError) as error:
        raise ConfigError(f"{VARIABLE} is {named!r}, which is no open pipe ({error}); unset it") from error

    def watch() -> None:
        while os.read(descriptor, 1):
            pass
        logger.warning("the process that started this one is gone; it ends too")
        pause = threading.Event()
        pause.wait(patience_s)
        ask()
        pause.wait(grace_s)
        end()

    watcher = threading.Thread(target=watch, name="lifeline", daemon=True)
    watcher.start()
    return watcher
