"""``WatermarkTracker``: the watermark of several input partitions.

The watermark of a partition is its largest ``min(event time, ingest time)``, less the allowed disorder. The watermark
of the joiner is the minimum over active partitions, and never falls. The caller passes the monotonic clock of its
reader, so a test or a replay can repeat every step. One thread uses a tracker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from monolith.core.errors import ConfigError
from monolith.stream.events import END_OF_TIME
from monolith.stream.settings import JoinSettings

__all__ = ["WatermarkTracker", "is_from_future", "to_flink"]


def is_from_future(time_ms: int, ingest_time_ms: int, future_ms: int) -> bool:
    """Return True if an event is too far ahead of its ingest time to be used."""
    return time_ms > ingest_time_ms + future_ms


def to_flink(watermark_ms: int) -> int:
    """Return Flink's watermark of the same state: Flink expects no more events with a time up to its watermark."""
    return watermark_ms - 1


@dataclass(slots=True)
class _Partition:
    spoke_ms: int  # reader clock of the last record, or of the start
    largest_ms: int | None = None
    ingest_ms: int | None = None
    is_at_end: bool = False


class WatermarkTracker:
    """Watermark over partitions, with idle partitions left out.

    Args:
        settings: ``out_of_order_ms``, ``future_ms`` and ``idle_ms`` count.
        partitions: Numbers of the input partitions. A partition without records holds the watermark until it is idle.
        clock_ms: Monotonic clock of the reader at the start.
        idle_advance: Whether the watermark follows the clock while all partitions are idle. For live streams.

    >>> tracker = WatermarkTracker(JoinSettings(out_of_order_ms=2), [0], clock_ms=0)
    >>> [tracker.observe(0, time, 100, clock_ms=0) and tracker.advance(0) for time in (10, 8, 12)]
    [8, 8, 10]
    """

    def __init__(
        self, settings: JoinSettings, partitions: Iterable[int], *, clock_ms: int, idle_advance: bool = True
    ) -> None:
        self._settings = settings
        self._partitions = {number: _Partition(clock_ms) for number in partitions}
        if not self._partitions:
            raise ConfigError("partitions is empty, expected at least one input partition")
        self._idle_advance = idle_advance
        self._watermark: int | None = None

    @property
    def watermark(self) -> int | None:
        """The watermark of the last ``advance``; None before the first one."""
        return self._watermark

    def ingest_time(self, partition: int, ingest_time_ms: int) -> int:
        """Return the ingest time of a record: that of the record before it, if the clock of the topic jumped back."""
        last = self._partitions[partition].ingest_ms
        return ingest_time_ms if last is None else max(last, ingest_time_ms)

    def observe(self, partition: int, time_ms: int, ingest_time_ms: int, *, clock_ms: int) -> bool:
        """Count an event of a partition, which is active from now on.

        Args:
            partition: Number of the partition.
            time_ms: Event time.
            ingest_time_ms: Append time of the record.
            clock_ms: Monotonic clock of the reader.

        Returns:
            False if the event is from the future. Such an event moves nothing and belongs to the dead letters.
        """
        state = self._partitions[partition]
        ingest_time_ms = self.ingest_time(partition, ingest_time_ms)
        if is_from_future(time_ms, ingest_time_ms, self._settings.future_ms):
            return False
        bounded = min(time_ms, ingest_time_ms)
        state.largest_ms = bounded if state.largest_ms is None else max(state.largest_ms, bounded)
        state.ingest_ms = ingest_time_ms
        state.spoke_ms = clock_ms
        state.is_at_end = False
        return True

    def reach_end(self, partition: int) -> None:
        """Note that the reader has read all records of a partition. Only such a partition becomes idle."""
        self._partitions[partition].is_at_end = True

    def count_idle(self, clock_ms: int) -> int:
        """Return the number of idle partitions."""
        return sum(self._is_idle(state, clock_ms) for state in self._partitions.values())

    def advance(self, clock_ms: int) -> int | None:
        """Return the watermark at ``clock_ms``; None until the first one is known."""
        active = [state for state in self._partitions.values() if not self._is_idle(state, clock_ms)]
        times = [state.largest_ms for state in active if state.largest_ms is not None]
        candidate = None
        if active and len(times) == len(active):
            candidate = min(times) - self._settings.out_of_order_ms
        elif not active and self._idle_advance:
            candidate = self._follow_clock(clock_ms)
        if candidate is not None and (self._watermark is None or candidate > self._watermark):
            self._watermark = candidate
        return self._watermark

    def finish(self) -> int:
        """Return the watermark at the end of a finite input, which closes every window."""
        self._watermark = END_OF_TIME
        return self._watermark

    def raise_to(self, watermark_ms: int) -> None:
        """Set the watermark of a journal, which a replay repeats."""
        self._watermark = watermark_ms if self._watermark is None else max(self._watermark, watermark_ms)

    def largest_time(self, partition: int) -> int | None:
        """Return the largest bounded event time of a partition; None before its first event."""
        return self._partitions[partition].largest_ms

    def save(self) -> dict[str, Any]:
        """Return the state without clocks, as plain JSON values."""
        return {
            "watermark": self._watermark,
            "partitions": {
                str(number): [state.largest_ms, state.ingest_ms] for number, state in self._partitions.items()
            },
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``save``. Partitions that it does not name start without events."""
        self._watermark = state["watermark"]
        for number, partition in self._partitions.items():
            partition.largest_ms, partition.ingest_ms = state["partitions"].get(str(number), (None, None))

    def _follow_clock(self, clock_ms: int) -> int | None:
        spoken = [
            (state.largest_ms, state.spoke_ms) for state in self._partitions.values() if state.largest_ms is not None
        ]
        if not spoken:
            return None
        silence_ms = clock_ms - max(spoke_ms for _, spoke_ms in spoken)
        return max(largest_ms for largest_ms, _ in spoken) - self._settings.out_of_order_ms + silence_ms

    def _is_idle(self, state: _Partition, clock_ms: int) -> bool:
        return state.is_at_end and clock_ms - state.spoke_ms >= self._settings.idle_ms
