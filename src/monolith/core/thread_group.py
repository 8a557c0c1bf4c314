"""``ThreadGroup``: threads that start together and end within a timeout.

An error that ends a thread is kept and raised by ``join``, so that no thread fails in silence. Threads are daemons: a
thread that does not end cannot keep the process alive.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from monolith.core.clock import Clock, Deadline, SystemClock
from monolith.core.errors import MonolithError

__all__ = ["ThreadGroup"]

logger = logging.getLogger(__name__)


class ThreadGroup:
    """Runs functions in threads. The owner tells them to end, by an event for example, and calls ``join``.

    Args:
        targets: Function of each thread, by the name of the thread.
        clock: Measures the timeout.

    >>> numbers = []
    >>> group = ThreadGroup({"counter": lambda: numbers.append(1)})
    >>> group.start()
    >>> group.join(10)
    >>> numbers
    [1]
    """

    def __init__(self, targets: Mapping[str, Callable[[], object]], *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._errors: dict[str, BaseException] = {}
        self._threads = [
            threading.Thread(target=self._run, args=(name, target), name=name, daemon=True)
            for name, target in targets.items()
        ]

    def start(self) -> None:
        """Start all threads."""
        for thread in self._threads:
            thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of all threads, ``timeout_s`` for all of them together.

        Raises:
            MonolithError: A thread still runs, or an error ended a thread; the text names it.
        """
        deadline = Deadline(self._clock, timeout_s)
        for thread in self._threads:
            thread.join(deadline.remaining_s())
        running = [thread.name for thread in self._threads if thread.is_alive()]
        if running:
            raise MonolithError(f"threads {', '.join(running)} still run after {timeout_s:g} s, expected their end")
        for name, error in self._errors.items():
            raise MonolithError(f"thread {name} failed: {type(error).__name__}: {error}") from error

    def _run(self, name: str, target: Callable[[], object]) -> None:
        try:
            target()
        except BaseException as error:
            logger.exception("thread failed thread=%s", name)
            self._errors[name] = error
