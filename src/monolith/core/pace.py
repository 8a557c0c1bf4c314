"""Work in the background that rests between its steps, so that those who answer meanwhile hardly wait for it.

A thread that computes in Python without a pause has the interpreter whenever another needs it, and a request needs it a
dozen times. Whoever works in small steps calls ``rest`` after each; what a step is, and for whom it waits, is not known
here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from monolith.core.clock import Clock

__all__ = ["rest", "unhurried"]

_RESTS_PER_WORK = 4.0
_LONGEST_REST_S = 0.02


class _Pace:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_s = clock.monotonic_s()

    def rest(self) -> None:
        worked_s = self._clock.monotonic_s() - self._since_s
        self._clock.sleep_s(min(_RESTS_PER_WORK * worked_s, _LONGEST_REST_S))
        self._since_s = self._clock.monotonic_s()


_pace: ContextVar[_Pace | None] = ContextVar("monolith_pace", default=None)


@contextmanager
def unhurried(clock: Clock) -> Iterator[None]:
    """Let this thread ``rest`` after each of its steps, for some times as long as the step took."""
    token = _pace.set(_Pace(clock))
    try:
        yield
    finally:
        _pace.reset(token)


def rest() -> None:
    """End a step: wait, where this thread is to be unhurried; go on at once where it is not."""
    pace = _pace.get()
    if pace is not None:
        pace.rest()
