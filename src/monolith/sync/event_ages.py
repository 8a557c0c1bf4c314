"""``EventAges``: event times of trained rows, kept until the publish that contains them. Thread safe."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from monolith.artifacts.delta_log.event_ages import count_ages

__all__ = ["EventAges", "TrainedRows"]

MOST_ROWS = 1 << 20
"""Rows that wait for a publish. While publishes fail, the oldest rows beyond are not counted."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainedRows:
    """Rows of one step."""

    trained_at_s: float
    """End of the step."""
    event_time_s: NDArray[np.float64]
    """Time of the event that made each row possible, unix seconds."""


class EventAges:
    """Collects rows; a publish takes them. One publisher uses it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: deque[TrainedRows] = deque()
        self._count = 0
        self.on_publish: Callable[[float], None] = lambda seconds: None
        """Receives, for every step in a publish, the seconds from the step to the publish."""

    def add(self, rows: TrainedRows) -> None:
        """Add the rows of a step."""
        if len(rows.event_time_s):
            with self._lock:
                self._rows.append(rows)
                self._count += len(rows.event_time_s)
                self._drop_oldest()

    def take(self) -> list[TrainedRows]:
        """Return the rows since the last call, before their state is copied."""
        with self._lock:
            taken = list(self._rows)
            self._rows.clear()
            self._count = 0
            return taken

    def put_back(self, rows: list[TrainedRows]) -> None:
        """Return rows whose publish failed: the next publish contains them."""
        with self._lock:
            self._rows.extendleft(reversed(rows))
            self._count += sum(len(each.event_time_s) for each in rows)
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        while self._count > MOST_ROWS and len(self._rows) > 1:
            self._count -= len(self._rows.popleft().event_time_s)

    def count(self, rows: list[TrainedRows], now_s: float) -> dict[int, int]:
        """Return the histogram of the ages of rows at a time."""
        return count_ages(now_s - np.concatenate([each.event_time_s for each in rows])) if rows else {}

    def report(self, rows: list[TrainedRows], now_s: float) -> None:
        """Report the waits of rows that were published at a time."""
        for each in rows:
            self.on_publish(max(0.0, now_s - each.trained_at_s))
