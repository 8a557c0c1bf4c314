"""Bounds the event times of batches, so that one record with a wrong clock cannot expire the rows of a table.

``EventTimes`` sits between the data and the step. A time further ahead of the clock than the bound becomes the time of
the bound, and is counted. Times in milliseconds, a frequent mistake, are named as such in the log. Used by one thread.
"""

from __future__ import annotations

import dataclasses
import logging

import numpy as np

from monolith.core.clock import Clock
from monolith.data import Batch

__all__ = ["EventTimes"]

logger = logging.getLogger(__name__)

_MILLISECONDS = 1000
_FIRST_NO_SECONDS = 1 << 32
_LOG_EVERY_S = 60.0


class EventTimes:
    """Bounds the event times of one run.

    Args:
        max_ahead_s: Seconds by which an event may be ahead of the clock; None = any number.
        clock: The wall clock.
    """

    def __init__(self, max_ahead_s: int | None, clock: Clock) -> None:
        self._max_ahead_s = max_ahead_s
        self._clock = clock
        self._logged_at_s = -_LOG_EVERY_S
        self.clamped = 0
        """Records whose event time was clamped."""

    def bound(self, batch: Batch) -> Batch:
        """Return the batch with event times of at most the bound: the same one where all are."""
        times = batch.event_time_s
        if self._max_ahead_s is None or not len(times):
            return batch
        most = int(self._clock.now_s()) + self._max_ahead_s
        newest = int(times.max())
        if newest <= most:
            return batch
        count = int((times > most).sum())
        self.clamped += count
        self._log(newest, most, count)
        # A plain function of the arrays: it runs a second time for the writable form of the batch.
        return batch.changed(
            lambda each: dataclasses.replace(each, event_time_s=np.minimum(np.asarray(each.event_time_s), most))
        )

    def _log(self, newest: int, most: int, count: int) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._logged_at_s < _LOG_EVERY_S:
            return
        self._logged_at_s = now_s
        unit = " unit=milliseconds" if newest >= _FIRST_NO_SECONDS and newest // _MILLISECONDS <= most else ""
        logger.warning(
            "event times clamped req_time=%d%s limit=%d records=%d total=%d remedy=%s",
            newest,
            unit,
            most,
            count,
            self.clamped,
            "divide req_time by 1000" if unit else "check the clocks of the devices, or raise max_event_ahead_s",
        )
