"""``EventAges``: event times of trained rows, kept until the publish that contains them. Thread safe."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from monolith.artifacts.delta_log.event_ages import count_ages

__all__ = ["EventAges", "TrainedRows"]


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
        self._rows: list[TrainedRows] = []
        self.on_publish: Callable[[float], None] = lambda seconds: None
        """Receives, for every step in a publish, the seconds from the step to the publish."""

    def add(self, rows: TrainedRows) -> None:
        """Add the rows of a step."""
        if len(rows.event_time_s):
            with self._lock:
                self._rows.append(rows)

    def take(self) -> list[TrainedRows]:
        """Return the rows since the last call, before their state is copied."""
        with self._lock:
            taken, self._rows = self._rows, []
            return taken

    def put_back(self, rows: list[TrainedRows]) -> None:
        """Return rows whose publish failed: the next publish contains them."""
        with self._lock:
            self._rows = [*rows, *self._rows]

    def count(self, rows: list[TrainedRows], now_s: float) -> dict[int, int]:
        """Return the histogram of the ages of published rows, and report their waits."""
        for each in rows:
            self.on_publish(max(0.0, now_s - each.trained_at_s))
        return count_ages(now_s - np.concatenate([each.event_time_s for each in rows])) if rows else {}
