"""``EventLogSource``: reads a topic of the event log, with exact positions, lag, and waits that need no polling.

A position holds, for each partition, the next offset and the epoch of the batch before it. The epoch tells a reader
that recovery has cut the tail it has read. One partition is ordered; several are read in turn, and ``resume`` repeats
the chunks that followed the position in their saved order.

Threading: one thread reads. ``committed``, ``lag`` and ``close`` may be called by others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Literal

from typing_extensions import override

from monolith import _native
from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ConfigError, DataError, RecordCorrupt
from monolith.data.records.framing import Framing
from monolith.data.sources.base import MetricSink, Position, RecordKind, Source
from monolith.data.sources.event_log.groups import PartitionPosition, check_group, commit_group, load_group
from monolith.data.sources.event_log.topic import Topic, stream_name
from monolith.data.sources.kafka.start_offsets import Start, check_start
from monolith.telemetry.names import (
    LOG_CORRUPT_BATCHES_TOTAL,
    LOG_LAG_RECORDS,
    LOG_LAG_SECONDS,
    LOG_LOST_RECORDS_TOTAL,
    LOG_RECORDS_TOTAL,
    MetricSpec,
)

__all__ = ["EventLogSource"]

logger = logging.getLogger(__name__)

# The native reader also wakes up for every commit; this bounds the time until ``close`` and timeouts take effect.
_WAIT_MS = 200
_LAG_EVERY_S = 5.0


class EventLogSource(Source):
    """Reads the records of some partitions of a topic.

    A chunk holds records of one partition, named ``log TOPIC[PARTITION]``, each with its offset.

    Args:
        topic: The topic.
        record: The message type of the records.
        partitions: Partitions to read; None = all. Members of a group read disjoint partitions.
        group: Consumer group that ``committed`` saves positions for; None = none.
        start: Where to begin without a saved position: "earliest", "latest", "committed" (the group's position, else
            the earliest record), or a unix time in seconds. None = "committed" with a group, else "earliest".
        framing: None if a message is one bare record; else the framing of the records inside a message.
        poll_records: Most messages per chunk. None means 64 for batches of examples, else 4096.
        idle_end_s: End the stream when no message came for this long; None never ends it.
        until_end: End the stream at the visible ends seen by the first ``read``.
        on_lost: "raise" when retention has removed the next record, or continue at the "earliest" one and count.
        on_corrupt: "raise" on a damaged batch or message, or "skip" and count it.
        metrics: Receives counts and the lag.
        clock: Time source.

    Raises:
        ConfigError: An argument is invalid.
        RecordCorrupt: The header of a partition's last segment is damaged.
    """

    def __init__(
        self,
        topic: Topic,
        record: RecordKind,
        *,
        partitions: Iterable[int] | None = None,
        group: str | None = None,
        start: Start | None = None,
        framing: Framing | None = None,
        poll_records: int | None = None,
        idle_end_s: float | None = None,
        until_end: bool = False,
        on_lost: Literal["raise", "earliest"] = "raise",
        on_corrupt: Literal["raise", "skip"] = "raise",
        metrics: MetricSink | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._topic = topic
        self._record = record
        self._numbers = _check_partitions(topic, partitions)
        self._group = None if group is None else check_group(group)
        self._start = check_start(("earliest" if group is None else "committed") if start is None else start)
        if self._start == "committed" and group is None:
            raise ConfigError("start is 'committed' and group is None, expected a group; give group=, or another start")
        self._framing = framing or Framing.bare()
        self._poll_records = poll_records or (64 if record.startswith("example_batch") else 4096)
        if not 0 < self._poll_records <= 1_000_000:
            raise ConfigError(f"poll_records is {poll_records!r}, expected 1 to 1000000")
        if idle_end_s is not None and idle_end_s < 0:
            raise ConfigError(f"idle_end_s is {idle_end_s!r}, expected 0 or more")
        if on_lost not in ("raise", "earliest"):
            raise ConfigError(f"on_lost is {on_lost!r}, expected 'raise' or 'earliest'")
        if on_corrupt not in ("raise", "skip"):
            raise ConfigError(f"on_corrupt is {on_corrupt!r}, expected 'raise' or 'skip'")
        self._idle_end_s = idle_end_s
        self._until_end = until_end
        self._skips_corrupt = on_corrupt == "skip"
        self._metrics = metrics
        self._clock = clock or SystemClock()
        self._partitions = topic.open_partitions(self._numbers)
        self._reader = _native.EventLogReader(
            self._partitions, topic.wake_path, on_lost == "earliest", self._skips_corrupt
        )
        self._lost = [0] * len(self._numbers)
        self._corrupt = [0] * len(self._numbers)
        self._replay: deque[tuple[int, int]] = deque()  # (index, end offset) of chunks to read again
        self._ends: list[int] | None = None
        self._has_started = False
        self._has_read = False
        self._lag_due_s = 0.0
        self._closing = threading.Event()

    @property
    @override
    def record(self) -> RecordKind:
        return self._record

    @property
    @override
    def is_ordered(self) -> bool:
        return len(self._numbers) == 1

    def export_to(self, metrics: MetricSink) -> None:
        """Send counts and lag to ``metrics``. Call it before the first ``read``."""
        self._metrics = metrics

    @override
    def read(self) -> _native.Records | None:
        """Return the next records of one partition; wait for them. None at the end, when idle too long, or closed.

        Raises:
            RecordCorrupt: A batch is damaged, or a message does not have the framing. The position stays before it.
            DataError: Retention has removed the next record, or the tail was cut.
        """
        self._start_reading()
        self._has_read = True
        quiet_since_s = self._clock.monotonic_s()
        while not self._closing.is_set():
            chunk = self._read_again() if self._replay else self._read_chunk()
            self._export_counts()
            if chunk is not None:
                if (records := self._split(chunk)) is not None:
                    self._export(LOG_RECORDS_TOTAL, len(records), self._topic.name)
                    return records
                quiet_since_s = self._clock.monotonic_s()
            elif self._is_at_end(quiet_since_s):
                return None
        return None

    @override
    def position(self) -> Position:
        """Return the next offset of each partition, and the epoch of the batch before it."""
        self._start_reading()
        return {"log": self._topic.id, "partitions": {str(n): dict(p) for n, p in self._positions().items()}}

    @override
    def resume(self, position: Position, then: Sequence[Position] = ()) -> None:
        """Go to these offsets; partitions that the position lacks begin at ``start``.

        Args:
            position: The position.
            then: The positions that followed; the records between them come first, in that order.

        Raises:
            ConfigError: The source has read already.
            DataError: The position belongs to another log, or the tail of the log was cut since.
        """
        if self._has_read:
            raise ConfigError("resume() is called after read(), expected before its first read; make a new source")
        for each in (position, *then):
            if each.get("log") != self._topic.id:
                raise DataError(
                    f"the position belongs to log {each.get('log')!r}, and {self._topic.url!r} is log "
                    f"{self._topic.id!r}; the topic was deleted and created again, start without the saved position"
                )
        self._has_started = False
        self._start_reading(position)
        self._replay.clear()
        before = position
        for after in then:
            for index, number in enumerate(self._numbers):
                begin, end = (int(p["partitions"].get(str(number), {"offset": 0})["offset"]) for p in (before, after))
                if begin < end and str(number) in before["partitions"]:
                    self._replay.append((index, end))
            before = after

    @override
    def committed(self, position: Position) -> None:
        """Save the position for the group. Log a failure: the checkpoint holds the position too."""
        if self._group is None:
            return
        mine = {number: position["partitions"].get(str(number)) for number in self._numbers}
        positions: dict[int, PartitionPosition] = {number: each for number, each in mine.items() if each is not None}
        try:
            commit_group(self._topic, self._group, positions)
        except (OSError, DataError) as error:
            logger.warning("group commit failed group=%s topic=%s error=%s", self._group, self._topic.name, error)

    def lag(self) -> dict[int, int]:
        """Return the number of unread records of each partition."""
        return {
            number: max(0, partition.visible_end - self._reader.next(index))
            for index, (number, partition) in enumerate(zip(self._numbers, self._partitions, strict=True))
        }

    @override
    def close(self) -> None:
        """End the stream; a ``read`` that waits in another thread returns None."""
        self._closing.set()
        self._reader.interrupt()

    # --- reading ---

    def _read_chunk(self) -> _native.EventLogChunk | None:
        if self._until_end:
            if self._ends is None:
                self._ends = [partition.visible_end for partition in self._partitions]
            for index, end in enumerate(self._ends):
                if (chunk := self._reader.read_partition(index, self._poll_records, end)) is not None:
                    return chunk
            return None
        self._export_lag()
        chunk = self._reader.read(self._poll_records, 0)
        if chunk is None:
            wait_ms = _WAIT_MS if self._idle_end_s is None else int(min(_WAIT_MS, self._idle_end_s * 1000))
            chunk = self._reader.read(self._poll_records, wait_ms)
        return chunk

    def _read_again(self) -> _native.EventLogChunk | None:
        """Return records of a chunk that followed the resumed position."""
        index, end = self._replay[0]
        chunk = self._reader.read_partition(index, self._poll_records, end)
        if self._reader.next(index) >= end:
            self._replay.popleft()
        elif chunk is None:
            raise DataError(
                f"{stream_name(self._topic.name, self._numbers[index])}: offset {end - 1} was read before and is gone; "
                "start without the saved position"
            )
        return chunk

    def _split(self, chunk: _native.EventLogChunk) -> _native.Records | None:
        """Return the records inside the messages of a chunk; None for none."""
        if self._framing.kind == "bare":
            return chunk.records
        payloads: list[bytes] = []
        offsets: list[int] = []
        keys: list[int] = []
        for index, offset in enumerate(range(chunk.begin, chunk.end)):
            try:
                frames = _native.FrameReader(self._framing.bits, f"{chunk.records.source}: message at offset {offset}")
                frames.feed(chunk.records[index])
                frames.finish()
                while (records := frames.take(1 << 20, 1 << 30, True)) is not None:
                    payloads += [records[each] for each in range(len(records))]
                    offsets += [offset] * len(records)
                    keys += records.source_keys.tolist()
            except RecordCorrupt as error:
                if not self._skips_corrupt:
                    self._reader.seek(self._numbers.index(chunk.partition), chunk.begin)
                    raise RecordCorrupt(f"{error}; check framing=, or skip with on_corrupt='skip'") from error
                logger.warning("corrupt message skipped topic=%s error=%s", self._topic.name, error)
        return _native.Records(payloads, chunk.records.source, offsets, keys) if payloads else None

    def _is_at_end(self, quiet_since_s: float) -> bool:
        if self._until_end:
            return True
        return self._idle_end_s is not None and self._clock.monotonic_s() - quiet_since_s >= self._idle_end_s

    # --- positions ---

    def _start_reading(self, position: Position | None = None) -> None:
        if self._has_started:
            return
        self._has_started = True
        saved: dict[int, PartitionPosition] = {}
        if position is not None:
            saved = {int(number): each for number, each in position["partitions"].items()}
        is_partial = any(number not in saved for number in self._numbers)
        if is_partial and self._start == "committed" and self._group is not None:
            saved = {**load_group(self._topic, self._group), **saved}
        for index, (number, partition) in enumerate(zip(self._numbers, self._partitions, strict=True)):
            if number in saved:
                self._reader.seek(index, saved[number]["offset"], saved[number]["epoch"])
            elif self._start == "latest":
                self._reader.seek(index, partition.visible_end)
            elif not isinstance(self._start, str):
                self._reader.seek(index, self._reader.find_time(index, int(self._start * 1000)))

    def _positions(self) -> dict[int, PartitionPosition]:
        return {
            number: {"offset": self._reader.next(index), "epoch": self._reader.epoch(index)}
            for index, number in enumerate(self._numbers)
        }

    # --- metrics ---

    def _export(self, metric: MetricSpec, value: float, *labels: str) -> None:
        if self._metrics is not None:
            self._metrics(metric, value, labels)

    def _export_counts(self) -> None:
        for index, number in enumerate(self._numbers):
            lost, corrupt = self._reader.lost(index), self._reader.corrupt_batches(index)
            if lost > self._lost[index]:
                logger.warning(
                    "records lost to retention stream=%s records=%d",
                    stream_name(self._topic.name, number),
                    lost - self._lost[index],
                )
                self._export(LOG_LOST_RECORDS_TOTAL, lost - self._lost[index], self._topic.name, str(number))
                self._lost[index] = lost
            if corrupt > self._corrupt[index]:
                logger.warning("damaged batch skipped stream=%s", stream_name(self._topic.name, number))
                increment = corrupt - self._corrupt[index]
                self._export(LOG_CORRUPT_BATCHES_TOTAL, increment, self._topic.name, str(number))
                self._corrupt[index] = corrupt

    def _export_lag(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._metrics is None or now_s < self._lag_due_s:
            return
        self._lag_due_s = now_s + _LAG_EVERY_S
        for index, (number, records) in enumerate(self.lag().items()):
            appended_ms = self._reader.next_append_ms(index) if records else None
            age_s = 0.0 if appended_ms is None else max(0.0, time.time() - appended_ms / 1000)
            self._export(LOG_LAG_RECORDS, records, self._topic.name, str(number))
            self._export(LOG_LAG_SECONDS, age_s, self._topic.name, str(number))


def _check_partitions(topic: Topic, partitions: Iterable[int] | None) -> list[int]:
    numbers = list(range(topic.settings.partitions)) if partitions is None else sorted(set(partitions))
    if not numbers or not 0 <= numbers[0] <= numbers[-1] < topic.settings.partitions:
        raise ConfigError(f"partitions is {numbers}, expected some of 0 to {topic.settings.partitions - 1}")
    return numbers
