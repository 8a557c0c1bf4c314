"""Histograms of durations, and counts of calls by name.

``CallMetrics`` uses the buckets of the native parameter server, so both appear as one metric.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from monolith.core.clock import Clock
from monolith.telemetry.names import BOUNDS_US

__all__ = ["CallMetrics", "Histogram", "Outcome"]


class Histogram:
    """Counts durations in buckets. Not thread safe: the owner holds a lock.

    >>> histogram = Histogram(bounds_us=(1_000, 10_000))
    >>> histogram.add(0.002)
    >>> histogram.snapshot()["buckets"]
    [0, 1, 0]

    Args:
        bounds_us: Upper ends of the buckets in microseconds; one more bucket holds the rest.
    """

    __slots__ = ("_bounds_us", "_buckets", "_count", "_sum_us")

    def __init__(self, bounds_us: Sequence[int] = BOUNDS_US) -> None:
        self._bounds_us = bounds_us
        self._count = self._sum_us = 0
        self._buckets = [0] * (len(bounds_us) + 1)

    def add(self, seconds: float, count: int = 1) -> None:
        """Count one duration, or several equal ones."""
        us = seconds * 1e6
        self._count += count
        self._sum_us += int(us) * count
        self._buckets[bisect.bisect_left(self._bounds_us, us)] += count

    def snapshot(self) -> dict[str, Any]:
        """Return count, sum_us, bounds_us and buckets, the form that ``text.render`` takes."""
        return {
            "count": self._count,
            "sum_us": self._sum_us,
            "bounds_us": self._bounds_us,
            "buckets": list(self._buckets),
        }


class Outcome:
    """Result of a call; set ``has_failed`` for a failure that raises no exception."""

    has_failed = False


class CallMetrics:
    """Counts calls, errors and durations by call name. Thread safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._durations: dict[str, Histogram] = {}
        self._errors: dict[str, int] = {}

    @contextmanager
    def call(self, name: str) -> Iterator[Outcome]:
        """Measure the block; an exception counts as an error."""
        outcome = Outcome()
        started_s = self._clock.monotonic_s()
        try:
            yield outcome
        except BaseException:
            outcome.has_failed = True
            raise
        finally:
            self._count(name, self._clock.monotonic_s() - started_s, outcome.has_failed)

    def _count(self, name: str, seconds: float, has_failed: bool) -> None:
        with self._lock:
            self._durations.setdefault(name, Histogram()).add(seconds)
            self._errors[name] = self._errors.get(name, 0) + has_failed

    def snapshot(self) -> Mapping[str, Mapping[str, Any]]:
        """Return per call name: count, errors, sum_us, bounds_us and buckets."""
        with self._lock:
            return {
                name: {**durations.snapshot(), "errors": self._errors[name]}
                for name, durations in self._durations.items()
            }
