"""Wait for a condition with a timeout, in tests of processes and threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["eventually"]

_POLL_S = 0.005


def eventually(condition: Callable[[], bool], timeout_s: float = 60.0, *, message: str = "") -> None:
    """Wait until ``condition()`` is true.

    Args:
        condition: called every few milliseconds.
        timeout_s: how long to wait. Choose it for a loaded machine: a passing test does not use it up.
        message: names the awaited event in the failure.

    Raises:
        AssertionError: the condition is still false after ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        if time.monotonic() >= deadline:
            raise AssertionError(f"condition is false after {timeout_s:g} s, expected true; {message or condition}")
        pause.wait(_POLL_S)
