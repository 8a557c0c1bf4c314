"""``RowTimes``: the event clock of a GPU table, and the stamps of its rows.

Rows that can expire keep the times of their last updates. Rows that can leave a full table keep at least the order of
their updates. Other rows keep nothing, and show the newest time of the table.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from monolith.nn.gpu.event_stamps import EventStamps

__all__ = ["RowTimes"]

_MOST_CLOCK_STEP_S = 86400


class RowTimes:
    """Clock and stamps.

    Args:
        has_times: Whether stamps are event times.
        has_order: Whether rows without times keep the order of their updates.
    """

    def __init__(self, *, has_times: bool, has_order: bool) -> None:
        self.has_times = has_times
        self.has_stamps = has_times or has_order
        self.stamps = EventStamps()
        self.clock_s = 0

    def stamp_update(self, time_s: int, number: int) -> tuple[int, NDArray[np.int32] | None]:
        """Advance the clock, by at most a day, and return the stamp of an update as ``EventStamps.stamp``.

        Args:
            time_s: Event time of the update.
            number: Updates before it, the order of rows without times.
        """
        if self.clock_s:
            self.clock_s = max(self.clock_s, min(time_s, self.clock_s + _MOST_CLOCK_STEP_S))
        else:
            self.clock_s = time_s
        if not self.has_stamps:
            return 0, None
        return self.stamps.stamp(time_s if self.has_times else number + 1)

    def stamp_rows(self, times: NDArray[np.uint32]) -> tuple[NDArray[np.int32], NDArray[np.int32] | None]:
        """Return the stamps of whole rows that are stored, as ``EventStamps.stamp_all``."""
        if self.has_times:
            return self.stamps.stamp_all(times)
        newest = len(self.stamps.seconds) - 1 if self.has_stamps else 0
        return np.full(len(times), newest, np.int32), None

    def times_of(self, stamps: NDArray[np.int32]) -> NDArray[np.uint32]:
        """Return the times of rows."""
        if not self.has_times:
            return np.full(len(stamps), self.clock_s, np.uint32)
        return self.stamps.seconds[stamps].astype(np.uint32)
