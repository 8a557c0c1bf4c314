"""``LogWriter``: appends messages to a topic of the event log.

Threads of one process share a writer. Processes append to the same partitions: each commit takes the partition's lock.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from typing_extensions import override

from monolith import _native
from monolith.core.errors import ConfigError, DataError
from monolith.data.sources.base import Sink
from monolith.data.sources.event_log.topic import Topic
from monolith.data.sources.event_log.writer_metrics import register_writer, unregister_writer

__all__ = ["LogWriter"]


class LogWriter(Sink):
    """Collects messages per partition and appends them in batches. Threads may share it.

    A message is in the log, for every reader, after ``linger_ms``, after a full batch, or after ``flush``. On a
    full disk, messages wait in memory up to ``buffer_bytes``; ``flush`` raises, and the next ``flush`` tries again.

    Args:
        topic: The topic.
        linger_ms: Longest wait for a batch to fill; 0 appends every message by itself.
        batch_bytes: Bytes that fill a batch.
        batch_records: Messages that fill a batch.
        buffer_bytes: Most bytes that wait in memory while appends are refused.
        partition: The only partition that is opened and written; None = all.

    Raises:
        ConfigError: An argument is out of range, or the folder is on a network file system.
        RecordCorrupt: A partition is damaged.

    >>> import tempfile
    >>> topic = Topic.create(tempfile.mkdtemp(), "clicks")
    >>> with LogWriter(topic) as writer:
    ...     writer.write(b"hello", key=b"user-1")
    """

    def __init__(
        self,
        topic: Topic,
        *,
        linger_ms: int = 5,
        batch_bytes: int = 64 << 10,
        batch_records: int = 1000,
        buffer_bytes: int = 64 << 20,
        partition: int | None = None,
    ) -> None:
        for name, value, least, most in (
            ("linger_ms", linger_ms, 0, 60_000),
            ("batch_bytes", batch_bytes, 1, 16 << 20),
            ("batch_records", batch_records, 1, 1_000_000),
            ("buffer_bytes", buffer_bytes, 1, 1 << 40),
        ):
            if not least <= value <= most:
                raise ConfigError(f"{name} is {value!r}, expected {least} to {most}")
        self.topic = topic
        self._only = partition
        self.partitions = topic.open_partitions(None if partition is None else [partition])
        self._native = _native.EventLogWriter(
            self.partitions,
            topic.wake_path,
            linger_ms,
            topic.settings.sync_interval_ms,
            batch_bytes,
            batch_records,
            buffer_bytes,
        )
        self._is_closed = False
        register_writer(self)

    @override
    def write(
        self, message: bytes, key: bytes | None = None, time_ms: int | None = None, *, partition: int | None = None
    ) -> None:
        """Accept one message, which may be empty.

        Args:
            message: The message.
            key: Chooses the partition; None = each partition in turn.
            time_ms: Event time in unix milliseconds; None = now.
            partition: The partition, instead of the key's.

        Raises:
            ConfigError: The writer is closed, the message or key is too large, or the time is out of range.
            AppendRefused: ``buffer_bytes`` wait already, and the disk refuses more. The message is not accepted.
            DataError: The partition has failed. The message is not accepted.
        """
        self._check_open()
        stamp = time.time_ns() // 1_000_000 if time_ms is None else time_ms
        self._native.write(message, key or b"", stamp, None if partition is None else self._lane(partition))

    def append(
        self,
        partition: int,
        messages: Sequence[bytes],
        keys: Sequence[bytes] | None = None,
        times_ms: Sequence[int] | None = None,
        *,
        producer: int = 0,
        owner: int = 0,
        sequence: int = 0,
    ) -> int:
        """Append messages as one batch, which readers see whole or not at all. Return the first offset.

        Args:
            partition: The partition.
            messages: At least one message.
            keys: A key per message; None = no keys.
            times_ms: An event time per message; None = now.
            producer: Id of the producer; 0 = none.
            owner: The number that ``take_producer`` returned for this partition.
            sequence: Number of the batch, for ``last_sequence``.

        Raises:
            ClusterError: Another process has taken the producer id; nothing is written.
            AppendRefused: The disk refuses the batch; nothing is written.
            DataError: The partition has failed.
            ConfigError: The writer is closed, or an argument is out of range.
        """
        self._check_open()
        stamps = [time.time_ns() // 1_000_000] * len(messages) if times_ms is None else times_ms
        names = [b""] * len(messages) if keys is None else keys
        return self._native.append(self._lane(partition), messages, names, stamps, producer, owner, sequence)

    def take_producer(self, partition: int, producer: int) -> int:
        """Take a producer id in a partition: return the owner number. Older owners are fenced from now on."""
        return self.partitions[self._lane(partition)].take_producer(producer)

    def last_sequence(self, partition: int, producer: int) -> int:
        """Return the sequence of the producer's last batch in a partition, 0 for none."""
        return self.partitions[self._lane(partition)].last_sequence(producer)

    @property
    def written_records(self) -> int:
        """Messages appended by this writer."""
        return self._native.written_records

    @property
    def written_bytes(self) -> int:
        """Bytes appended by this writer."""
        return self._native.written_bytes

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait in memory."""
        return self._native.waiting_bytes

    @property
    def refused_appends(self) -> int:
        """Appends that the disk refused."""
        return self._native.refused_appends

    @override
    def flush(self) -> None:
        """Append all waiting messages; with durability="commit", wait for the disk.

        Raises:
            AppendRefused: The disk refuses the append. The messages stay here for the next ``flush``.
            DataError: The partition has failed.
        """
        if not self._is_closed:
            self._native.flush()

    @override
    def close(self) -> None:
        """Flush and release the files. Messages that the disk refuses are lost, and the error is raised.

        A ``write`` of another thread is in the log, or raises. With durability="interval", wait for the disk: no later
        interval syncs the last messages.

        Raises:
            AppendRefused: The disk refuses the last messages.
            DataError: A partition has failed.
        """
        if self._is_closed:
            return
        self._native.stop()  # before the flush: a later write of another thread raises
        try:
            try:
                self._native.flush()
            finally:
                self._sync_last_interval()
        finally:
            self._is_closed = True
            unregister_writer(self)

    def _sync_last_interval(self) -> None:
        if self.topic.settings.durability != "interval":
            return
        failure: DataError | None = None
        for partition in self.partitions:
            try:
                partition.sync(partition.written_end)
            except DataError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        """Return the writer; ``close`` runs at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the writer."""
        self.close()

    def _lane(self, partition: int) -> int:
        """Return the place of a partition among those that this writer opened."""
        if self._only is None:
            return partition
        if partition != self._only:
            raise ConfigError(f"partition is {partition}, expected {self._only}, the only one of this writer")
        return 0

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConfigError(f"the writer of {self.topic.url!r} is closed, expected an open one; make a new one")
