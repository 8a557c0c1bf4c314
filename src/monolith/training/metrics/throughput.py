"""``Throughput``: steps, samples and ids per second over the last seconds. Logs and exports nothing."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from monolith.core.clock import Clock
from monolith.core.errors import ConfigError

__all__ = ["Rates", "Throughput"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How fast a run is. NaN where no time has passed."""

    steps_per_s: float
    samples_per_s: float
    ids_per_s: float

    @property
    def seconds_per_step(self) -> float:
        """Mean time of a step; NaN without steps."""
        return 1 / self.steps_per_s if self.steps_per_s else math.nan


@dataclass(frozen=True, slots=True)
class _Mark:
    time_s: float
    steps: int
    samples: int
    ids: int


class Throughput:
    """Counts since it was made, and rates over a sliding window. Used by one thread.

    Args:
        clock: Where the time comes from.
        window_s: How far back the rates look.
    """

    def __init__(self, clock: Clock, *, window_s: float = 30.0) -> None:
        if not 0 < window_s < math.inf:
            raise ConfigError(f"window_s must be positive and finite, got {window_s}")
        self._clock = clock
        self._window_s = window_s
        self._begin = self._last = _Mark(clock.monotonic_s(), 0, 0, 0)
        self._marks: deque[_Mark] = deque([self._begin])

    @property
    def steps(self) -> int:
        """Steps counted so far."""
        return self._last.steps

    @property
    def samples(self) -> int:
        """Samples counted so far."""
        return self._last.samples

    @property
    def ids(self) -> int:
        """Ids counted so far."""
        return self._last.ids

    def add(self, *, samples: int, ids: int) -> None:
        """Count one step that ends now."""
        last = self._last
        self._last = _Mark(self._clock.monotonic_s(), last.steps + 1, last.samples + samples, last.ids + ids)
        # A hundred marks are fine enough, however short the steps are.
        if self._last.time_s - self._marks[-1].time_s >= self._window_s / 100:
            self._marks.append(self._last)
        while len(self._marks) > 1 and self._marks[1].time_s <= self._last.time_s - self._window_s:
            self._marks.popleft()

    def rates(self) -> Rates:
        """Return the rates over the window, up to the end of the last step."""
        return self._between(self._marks[0])

    def overall(self) -> Rates:
        """Return the rates since it was made, up to the end of the last step."""
        return self._between(self._begin)

    def _between(self, begin: _Mark) -> Rates:
        end = self._last
        elapsed_s = end.time_s - begin.time_s or math.nan
        return Rates(
            steps_per_s=(end.steps - begin.steps) / elapsed_s,
            samples_per_s=(end.samples - begin.samples) / elapsed_s,
            ids_per_s=(end.ids - begin.ids) / elapsed_s,
        )
