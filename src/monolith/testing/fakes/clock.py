"""``FakeClock``: a clock that only a test moves, so that tests with it are instantaneous and repeatable."""

from __future__ import annotations

import threading

from monolith.core.clock import checked_duration_s

__all__ = ["FakeClock"]


class FakeClock:
    """A ``Clock`` whose ``sleep_s`` moves the time and returns immediately. Safe to share between threads.

    >>> clock = FakeClock(now_s=100.0)
    >>> clock.sleep_s(2.5)
    >>> clock.now_s(), clock.slept_s
    (102.5, [2.5])
    """

    def __init__(self, now_s: float = 1_700_000_000.0) -> None:
        """Start at the wall-clock time ``now_s``, with the monotonic time at zero."""
        self._lock = threading.Lock()
        self._now_s = now_s
        self._monotonic_s = 0.0
        self.slept_s: list[float] = []
        """Every sleep so far, in order."""

    def now_s(self) -> float:
        """Return the pretended wall-clock time."""
        with self._lock:
            return self._now_s

    def monotonic_s(self) -> float:
        """Return the pretended seconds since the start."""
        with self._lock:
            return self._monotonic_s

    def sleep_s(self, seconds: float) -> None:
        """Advance both times by ``seconds`` and remember the call."""
        self.advance_s(seconds)
        self.slept_s.append(seconds)

    def advance_s(self, seconds: float) -> None:
        """Move the time by ``seconds`` without a sleep."""
        checked_duration_s(seconds)
        with self._lock:
            self._now_s += seconds
            self._monotonic_s += seconds

    def set_now_s(self, now_s: float) -> None:
        """Make the wall clock jump, as an administrator would; the monotonic time stays."""
        with self._lock:
            self._now_s = now_s
