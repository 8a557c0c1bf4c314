"""``stop_signals``: lets the main thread wait for SIGTERM and SIGINT."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TypeAlias

__all__ = ["Endings", "stop_signals"]

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
