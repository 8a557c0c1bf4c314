"""Throttle for background work, so that request threads get the interpreter.

Background work in Python holds the GIL, which each request needs about a dozen times. Long loops call ``yield_gil``
between work units. Inside ``throttled()`` the call sleeps four times the duration of the unit, at most 20 ms; elsewhere
it returns immediately. The mode belongs to the thread (a context variable).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from monolith.core.clock import Clock

__all__ = ["throttled", "yield_gil"]

_SLEEP_PER_WORK = 4.0
_LONGEST_SLEEP_S = 0.02


class _Throttle:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_s = clock.monotonic_s()

    def sleep(self) -> None:
        worked_s = self._clock.monotonic_s() - self._since_s
        self._clock.sleep_s(min(_SLEEP_PER_WORK * worked_s, _LONGEST_SLEEP_S))
        self._since_s = self._clock.monotonic_s()


_throttle: ContextVar[_Throttle | None] = ContextVar("monolith_throttle", default=None)


@contextmanager
def throttled(clock: Clock) -> Iterator[None]:
    """Throttle the block: ``yield_gil`` sleeps after each work unit of this thread."""
    token = _throttle.set(_Throttle(clock))
    try:
        yield
    finally:
        _throttle.reset(token)


def yield_gil() -> None:
    """End a work unit: sleep if this thread is throttled."""
    throttle = _throttle.get()
    if throttle is not None:
        throttle.sleep()
