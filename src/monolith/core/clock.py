"""``Clock``: time as an argument; ``SystemClock`` and ``Deadline``.

Only this module reads the machine's clocks or sleeps. Other code takes a ``Clock``, so that a test can pass
``monolith.testing.FakeClock`` and need not wait. Event times of records are data, not clocks.
"""

from __future__ import annotations

import math
import time
from typing import Protocol, runtime_checkable

from monolith.core.errors import ConfigError

__all__ = ["Clock", "Deadline", "SystemClock", "checked_duration_s"]


@runtime_checkable
class Clock(Protocol):
    """Returns the time, and waits."""

    def now_s(self) -> float:
        """Return the wall-clock time in unix seconds; it may jump."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary start; it never goes back. Use it to measure durations."""
        ...

    def sleep_s(self, seconds: float) -> None:
        """Wait until ``monotonic_s`` has advanced by ``seconds``.

        Raises:
            ConfigError: ``seconds`` is negative or not finite.
        """
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_s(self) -> float:
        """Return the wall-clock time in unix seconds."""
        return time.time()

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary start."""
        return time.monotonic()

    def sleep_s(self, seconds: float) -> None:
        """Block this thread for ``seconds``."""
        time.sleep(checked_duration_s(seconds))


class Deadline:
    """The moment at which a timeout ends, on one clock."""

    def __init__(self, clock: Clock, timeout_s: float | None) -> None:
        """Start counting now.

        Args:
            clock: The clock that decides.
            timeout_s: Seconds from now; ``None`` never passes.
        """
        self._clock = clock
        self._end_s = math.inf if timeout_s is None else clock.monotonic_s() + checked_duration_s(timeout_s)

    def remaining_s(self) -> float:
        """Return the remaining seconds: zero when past, infinity without a limit."""
        return max(0.0, self._end_s - self._clock.monotonic_s())

    @property
    def is_past(self) -> bool:
        """True if no time is left."""
        return self.remaining_s() == 0.0


def checked_duration_s(seconds: float) -> float:
    """Return ``seconds`` if it is a valid duration, or raise ``ConfigError``."""
    if not math.isfinite(seconds) or seconds < 0:
        raise ConfigError(f"the duration is {seconds} s, expected a finite number of at least 0")
    return seconds
