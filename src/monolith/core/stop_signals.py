"""The signals that end a process: waits for them (``stop_signals``), or holds them back (``held_signals``)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TypeAlias

__all__ = ["Endings", "held_signals", "stop_signals"]

Endings: TypeAlias = "SimpleQueue[str]"
"""Names of the received signals. A signal handler may put one at any time, unlike with ``threading.Event``, whose lock
the interrupted thread may hold."""


@contextmanager
def stop_signals() -> Iterator[Endings]:
    """Catch SIGTERM and SIGINT while the block runs, and yield the queue of their names. For the main thread only."""
    endings: Endings = SimpleQueue()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {one: signal.signal(one, lambda number, _: endings.put(signal.Signals(number).name)) for one in numbers}
    try:
        yield endings
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def held_signals() -> Iterator[None]:
    """Hold back SIGINT, SIGTERM and SIGHUP until the block ends.

    Without it, a signal that arrives while ``Popen`` starts a process leaves a process that the caller cannot stop.
    Outside the main thread nothing is held: handlers run in the main thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {one: signal.signal(one, lambda number, _: received.append(number)) for one in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in received:
            signal.raise_signal(late)
