"""Things that are looked at every so often. Reads no clock: the time is an argument."""

from __future__ import annotations

from monolith.core.errors import ConfigError

__all__ = ["Interval"]


class Interval:
    """Timer of repeated checks: due immediately, then ``every_s`` seconds after the last check.

    >>> interval = Interval(30.0)
    >>> [interval.is_due(now_s) for now_s in (0.0, 10.0, 31.0, 60.0, 61.0)]
    [True, False, True, False, True]
    """

    def __init__(self, every_s: float) -> None:
        if not every_s >= 0:
            raise ConfigError(f"every_s is {every_s}; it may not be negative")
        self._every_s = every_s
        self._next_s: float | None = None

    def reset(self) -> None:
        """Become due immediately."""
        self._next_s = None

    def is_due(self, now_s: float) -> bool:
        """Return whether it is time at ``now_s`` of a monotonic clock; if so, the next interval begins."""
        if self._next_s is not None and now_s < self._next_s:
            return False
        self._next_s = now_s + self._every_s
        return True
