"""``LogInput`` and ``LogSink``: partitions of the event log as ports of a join.

A sink takes a producer id in its partition. The log fences an older owner at its next append, so a stopped process that
wakes up writes nothing.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from typing_extensions import override

from monolith import _native
from monolith.core.errors import AppendRefused, DataError
from monolith.data.sources.event_log.groups import commit_group
from monolith.data.sources.event_log.topic import Topic, stream_name
from monolith.data.sources.event_log.writer import LogWriter
from monolith.stream.hashes import fnv1a64
from monolith.stream.native_core import JoinBatch
from monolith.stream.runtime.ports import JoinInput, JoinSink, Lot

__all__ = ["LogInput", "LogSink"]

logger = logging.getLogger(__name__)


class LogInput(JoinInput):
    """One partition of a topic of the event log.

    Args:
        topic: The topic.
        partition: The partition.
        group: Consumer group whose position follows the snapshots, for observers.
        start: Where to begin without a snapshot.
        on_lost: "raise" if retention removed the next record, or continue at the "earliest" one.
        on_corrupt: "raise" on a damaged batch, or "skip" it and count its records as lost.
    """

    def __init__(
        self,
        topic: Topic,
        partition: int,
        *,
        group: str,
        start: Literal["earliest", "latest"] = "earliest",
        on_lost: Literal["raise", "earliest"] = "raise",
        on_corrupt: Literal["raise", "skip"] = "raise",
    ) -> None:
        self._topic = topic
        self._number = partition
        self._group = group
        self._partition = topic.open_partition(partition)
        self._reader = _native.EventLogReader(
            [self._partition], topic.wake_path, on_lost == "earliest", on_corrupt == "skip"
        )
        self._damaged = 0
        if start == "latest":
            self._reader.seek(0, self._partition.visible_end)
        else:
            self._reader.seek(0, self._partition.first)

    @property
    @override
    def topic(self) -> str:
        return self._topic.name

    @property
    @override
    def partition(self) -> int:
        return self._number

    @property
    @override
    def lost_records(self) -> int:
        return self._reader.lost(0) + self._reader.corrupt_records(0)

    @override
    def read(self, most_records: int, wait_s: float) -> Lot | None:
        chunk = self._reader.read(most_records, int(wait_s * 1000))
        if (damaged := self._reader.corrupt_records(0)) > self._damaged:
            stream = stream_name(self._topic.name, self._number)
            logger.warning("damaged records skipped stream=%s records=%d", stream, damaged - self._damaged)
            self._damaged = damaged
        if chunk is None:
            return None
        batch = JoinBatch(chunk.records, chunk.append_ms, chunk.keys, chunk.times_ms)
        return Lot(batch, range(chunk.begin, chunk.end))

    @override
    def is_at_end(self) -> bool:
        return self._reader.next(0) >= self._partition.visible_end

    @override
    def has_reached_end(self) -> bool:
        return self.is_at_end()

    @override
    def position(self) -> Mapping[str, Any]:
        return {"log": self._topic.id, "offset": self._reader.next(0), "epoch": self._reader.epoch(0)}

    @override
    def resume(self, position: Mapping[str, Any]) -> None:
        if position["log"] != self._topic.id:
            raise DataError(
                f"the position belongs to log {position['log']!r}, and {self._topic.url!r} is log {self._topic.id!r}; "
                "the topic was created again, use an empty --state folder"
            )
        self._reader.seek(0, position["offset"], position["epoch"])

    @override
    def skip_to(self, offset: int) -> None:
        if self._reader.next(0) != offset:
            self._reader.seek(0, offset)

    @override
    def committed(self, position: Mapping[str, Any]) -> None:
        place = {self._number: {"offset": position["offset"], "epoch": position["epoch"]}}
        try:
            commit_group(self._topic, self._group, place)
        except (OSError, DataError) as error:  # for observers: the snapshot holds the position
            logger.warning("group commit failed group=%s topic=%s error=%s", self._group, self._topic.name, error)

    @override
    def close(self) -> None:
        self._reader.interrupt()


class LogSink(JoinSink):
    """One partition of a topic of the event log.

    Args:
        writer: The writer of the topic.
        partition: The partition.
        name: Name of the producer; sinks of one name and partition replace each other.
    """

    def __init__(self, writer: LogWriter, partition: int, name: str) -> None:
        self._writer = writer
        self._partition = partition
        self._producer = fnv1a64(f"{name}/{partition}".encode()) or 1
        self._owner = 0

    @override
    def take_over(self) -> int:
        self._owner = self._writer.take_producer(self._partition, self._producer)
        return self._writer.last_sequence(self._partition, self._producer)

    @override
    def append(self, sequence: int, keys: Sequence[bytes], values: Sequence[bytes], times_ms: Sequence[int]) -> None:
        try:
            self._writer.append(
                self._partition,
                values,
                keys,
                [max(0, time_ms) for time_ms in times_ms],  # LineId keeps a time before 1970
                producer=self._producer,
                owner=self._owner,
                sequence=sequence,
            )
        except AppendRefused as error:
            raise OSError(errno.ENOSPC, str(error), str(self._writer.topic.folder)) from error
        except OSError as error:  # after the write: to append again would double the batch
            raise DataError(
                f"topic {self._writer.topic.name!r} could not sync an append: {error}; restart the join, which appends "
                "the batch only if it is absent"
            ) from error

    @override
    def close(self) -> None:
        self._writer.close()
