"""``QueueSource`` and ``QueueSink``: a stream inside one process. A thread puts records, a dataset reads them.

For tests, and for training inside another program. A record is dropped once it is read.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from typing_extensions import override

from monolith import _native
from monolith.core.errors import ConfigError, DataError
from monolith.data.sources.base import Position, RecordKind, Sink, Source

__all__ = ["QueueSink", "QueueSource"]

CHUNK_RECORDS = 4096


class QueueSource(Source):
    """A bounded queue of records.

    Any number of threads may call ``put`` and ``end``, one may call ``read``. Records are numbered in the order of
    ``put``, from ``first`` on; a position is such a number. A queue cannot return a record again. After ``resume`` the
    producer puts the stream again from ``first`` on, and the queue drops the records before the position. A producer
    that starts in the middle sets ``first`` to the number of its first record.

    Args:
        record: The message type of the records.
        maxsize: Most records in the queue; ``put`` blocks while it is full.
        first: The number of the first record of ``put``.
        name: Name of the queue in errors.

    >>> queue = QueueSource("example", maxsize=8)
    >>> queue.put([b"a", b"b"])
    >>> queue.end()
    >>> len(queue.read()), queue.position(), queue.read()
    (2, {'records': 2}, None)
    """

    def __init__(self, record: RecordKind, maxsize: int = 65536, *, first: int = 0, name: str = "queue") -> None:
        if maxsize < 1:
            raise ConfigError(f"maxsize is {maxsize}, expected at least 1")
        if first < 0:
            raise ConfigError(f"first is {first}, expected at least 0")
        self._record = record
        self._maxsize = maxsize
        self._name = name
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._next = first  # number of the next record to come out
        self._wanted = first  # records before this one are dropped
        self._has_ended = False
        self._is_closed = False

    @property
    @override
    def record(self) -> RecordKind:
        return self._record

    @property
    @override
    def is_ordered(self) -> bool:
        return True

    def put(self, records: Sequence[bytes] | _native.Records) -> None:
        """Append records; wait while the queue is full.

        Raises:
            ConfigError: The queue has ended or is closed, so the records would never be read.
        """
        for index in range(len(records)):
            with self._changed:
                self._changed.wait_for(lambda: len(self._waiting) < self._maxsize or self._is_over)
                if self._is_over:
                    state = "closed" if self._is_closed else "ended"
                    raise ConfigError(f"{self._name} is {state}, expected open; put records before end() and close()")
                self._waiting.append(bytes(records[index]))
                self._drop_unwanted()
                self._changed.notify_all()

    def end(self) -> None:
        """Mark the end of the stream: ``read`` returns the remaining records, then None."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    @override
    def read(self) -> _native.Records | None:
        """Return the records in the queue, at most a few thousand; wait for the first one. None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_over)
            if self._is_closed or not self._waiting:
                return None
            count = min(len(self._waiting), CHUNK_RECORDS)
            payloads = [self._waiting.popleft() for _ in range(count)]
            first = self._next
            self._next += count
            self._changed.notify_all()
        return _native.Records(payloads, self._name, range(first, first + count))

    @override
    def position(self) -> Position:
        """Return the number of the next record."""
        with self._changed:
            return {"records": max(self._next, self._wanted)}

    @override
    def resume(self, position: Position, then: Sequence[Position] = ()) -> None:
        """Drop the records before a position.

        Raises:
            DataError: The queue is past the position.
        """
        wanted = int(position["records"])
        with self._changed:
            if wanted < self._next:
                raise DataError(
                    f"{self._name} is at record {self._next} and cannot go back to record {wanted}; restart the "
                    f"producer there, with a queue of first={wanted}"
                )
            self._wanted = wanted
            self._drop_unwanted()
            self._changed.notify_all()

    @override
    def committed(self, position: Position) -> None:
        pass  # a queue keeps no record

    @override
    def close(self) -> None:
        """Drop the remaining records; ``read`` then returns None, and ``put`` raises."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify_all()

    @property
    def _is_over(self) -> bool:
        return self._has_ended or self._is_closed

    def _drop_unwanted(self) -> None:
        while self._waiting and self._next < self._wanted:
            self._waiting.popleft()
            self._next += 1


class QueueSink(Sink):
    """Puts messages into a queue; drops keys and times, which a queue does not hold.

    Args:
        queue: The queue. ``close`` ends it.
    """

    def __init__(self, queue: QueueSource) -> None:
        self._queue = queue
        self._is_closed = False

    @override
    def write(self, message: bytes, key: bytes | None = None, time_ms: int | None = None) -> None:
        """Put one message; wait while the queue is full.

        Raises:
            ConfigError: The sink is closed.
        """
        if self._is_closed:
            raise ConfigError("the sink of the queue is closed, expected an open one; make a new queue")
        self._queue.put([message])

    @override
    def flush(self) -> None:
        pass  # a message is in the queue when ``write`` returns

    @override
    def close(self) -> None:
        self._is_closed = True
        self._queue.end()
