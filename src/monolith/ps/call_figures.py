"""How often calls were made and how long they took, with the buckets that the native shard uses for its own."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from monolith.core.clock import Clock

__all__ = ["BOUNDS_US", "CallFigures", "Outcome"]

BOUNDS_US = (50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000)
"""Upper ends of the histogram's buckets in microseconds; one more holds the rest."""


class Outcome:
    """How a call went; good unless it is said otherwise."""

    has_failed = False


class CallFigures:
    """Counts calls by name. Safe to use from several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._calls: dict[str, dict[str, Any]] = {}

    @contextmanager
    def call(self, name: str) -> Iterator[Outcome]:
        """Measure what happens inside; an exception counts as an error."""
        outcome = Outcome()
        started_s = self._clock.monotonic_s()
        try:
            yield outcome
        except BaseException:
            outcome.has_failed = True
            raise
        finally:
            self._note(name, (self._clock.monotonic_s() - started_s) * 1e6, outcome.has_failed)

    def _note(self, name: str, us: float, has_failed: bool) -> None:
        with self._lock:
            figures = self._calls.setdefault(name, _no_calls())
            figures["count"] += 1
            figures["errors"] += has_failed
            figures["sum_us"] += int(us)
            figures["buckets"][bisect.bisect_left(BOUNDS_US, us)] += 1

    def by_call(self) -> Mapping[str, Mapping[str, Any]]:
        """Return per call name: count, errors, sum_us, bounds_us and buckets."""
        with self._lock:
            return {name: {**figures, "buckets": list(figures["buckets"])} for name, figures in self._calls.items()}


def _no_calls() -> dict[str, Any]:
    return {"count": 0, "errors": 0, "sum_us": 0, "bounds_us": BOUNDS_US, "buckets": [0] * (len(BOUNDS_US) + 1)}
