"""Time as an argument: the ``Clock`` seam, the system's clock, and deadlines.

The only module that reads the machine's clocks or sleeps. Everything else takes a ``Clock``, so a test can hand it
``monolith.testing.FakeClock`` and no test ever waits. Event times of records are data, not clocks, and are not here.
"""

from __future__ import annotations

import math
import time
from typing import Protocol, runtime_checkable

from monolith.core.errors import ConfigError

__all__ = ["Clock", "Deadline", "SystemClock", "checked_duration_s"]


@runtime_checkable
class Clock(Protocol):
    """Where a component gets the time from, and how it waits."""

    def now_s(self) -> float:
        """Return the wall-clock time in unix seconds; it may jump."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary start; it never goes back. Measure durations with this one."""
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
    """A moment after which work is no longer wanted, on one clock."""

    def __init__(self, clock: Clock, timeout_s: float | None) -> None:
        """Start counting now.

        Args:
            clock: The clock that decides.
            timeout_s: Seconds from now; ``None`` never passes.
        """
        self._clock = clock
        self._end_s = math.inf if timeout_s is None else clock.monotonic_s() + checked_duration_s(timeout_s)

    def remaining_s(self) -> float:
        """Return the seconds left: zero when past, infinity when there is no limit."""
        return max(0.0, self._end_s - self._clock.monotonic_s())

    @property
    def is_past(self) -> bool:
        """Whether no time is left."""
        return self.remaining_s() == 0.0


def checked_duration_s(seconds: float) -> float:
    """Return ``seconds``, or raise ``ConfigError`` when it is no length of time."""
    if not math.isfinite(seconds) or seconds < 0:
        raise ConfigError(f"a duration must be finite and not negative, got {seconds} s")
    return seconds
