"""Signals that ask a process to end, as something its main thread can wait for. How it ends is its own affair."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TypeAlias

__all__ = ["Endings", "stop_signals"]

Endings: TypeAlias = "SimpleQueue[str]"
"""Reasons to end, as they come. A signal handler may put one there whatever the thread it interrupts is doing: unlike
``threading.Event``, whose lock that thread may hold."""


@contextmanager
def stop_signals() -> Iterator[Endings]:
    """Catch SIGTERM and SIGINT while the block runs; what it is given hears of them. For the main thread only."""
    endings: Endings = SimpleQueue()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {one: signal.signal(one, lambda number, _: endings.put(signal.Signals(number).name)) for one in numbers}
    try:
        yield endings
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
