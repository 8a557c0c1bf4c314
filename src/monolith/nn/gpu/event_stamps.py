"""``EventStamps``: times of updates as stamps of 16 bits, in the order of the times.

A row of a GPU table keeps a stamp instead of four bytes of seconds. A later time has a larger stamp, so the newest time
of a row is its largest stamp. When the stamps run out, close times become the newest of them, so that no row expires
early. With 65,536 stamps, times are exact for as many distinct seconds, and within 17 minutes over a year.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["EventStamps"]

_MOST = 1 << 16


class EventStamps:
    """Times by stamp. Stamp 0 is time 0: a row without a time.

    >>> times = EventStamps()
    >>> [times.stamp(70), times.stamp(70), times.stamp(60), times.seconds.tolist()]
    [(1, None), (1, None), (1, None), [0, 70]]

    Args:
        most: Largest number of stamps.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._seconds = np.zeros(1, np.int64)

    @property
    def seconds(self) -> NDArray[np.int64]:
        """Time of every stamp, rising."""
        return self._seconds

    def stamp(self, time_s: int) -> tuple[int, NDArray[np.int32] | None]:
        """Return the stamp of an update.

        A late time gets the stamp of the next known time.

        Returns:
            The stamp, and the replacement of every earlier stamp where stamps were numbered again.
        """
        place = int(np.searchsorted(self._seconds, time_s))
        if place < len(self._seconds):
            return place, None
        replacements = None
        if len(self._seconds) == self._most:
            before = self._seconds
            self._thin()
            replacements = np.searchsorted(self._seconds, before).astype(np.int32)
        self._seconds = np.append(self._seconds, time_s)
        return len(self._seconds) - 1, replacements

    def stamp_all(self, times: NDArray[np.uint32]) -> tuple[NDArray[np.int32], NDArray[np.int32] | None]:
        """Return the stamps of many times, as ``stamp`` does; every time is known afterwards, if there is room."""
        before = self._seconds
        self._seconds = np.union1d(before, times.astype(np.int64))
        if len(self._seconds) > self._most:
            self._thin()
        stamps = np.searchsorted(self._seconds, times.astype(np.int64)).astype(np.int32)
        replacements = np.searchsorted(self._seconds, before).astype(np.int32)
        is_same = np.array_equal(replacements, np.arange(len(before)))
        return stamps, None if is_same else replacements

    def _thin(self) -> None:
        """Keep the newest time of every period, with periods long enough that half of the stamps are free.

        A period is a power of two of seconds, so a row is never rounded across the end of one.
        """
        shift = 0
        seconds = self._seconds
        while len(self._seconds) > self._most // 2:
            shift += 1
            periods = seconds[1:] >> shift
            is_kept = np.append(periods[1:] != periods[:-1], True)
            self._seconds = np.append(seconds[:1], seconds[1:][is_kept])
