"""A stream inside one process: a thread puts records, a dataset reads them. For tests, and for embedding training.

Knows no format and no network. Nothing is kept once it was read.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from monolith import _native
from monolith.core.errors import ConfigError, DataError
from monolith.data.sources.base import Position, RecordKind

__all__ = ["QueueSource"]

LOT_RECORDS = 4096


class QueueSource:
    """A bounded queue of records.

    ``put`` and ``end`` may be called from any number of threads, ``read`` from one. Records are numbered as they are
    put, from ``first`` on; a position is such a number. A queue cannot give a record again: after ``resume`` the
    producer puts the stream again from ``first`` on, and what comes before the place is dropped. So a producer that
    goes on in the middle makes its queue with ``first`` set to the number of the record that it puts first.

    Args:
        record: Which message the records are.
        maxsize: Records that wait at most; ``put`` blocks while there are as many.
        first: The number of the first record that will be put.
        name: What to call the queue in errors.

    >>> queue = QueueSource("example", maxsize=8)
    >>> queue.put([b"a", b"b"])
    >>> queue.end()
    >>> len(queue.read()), queue.position(), queue.read()
    (2, {'records': 2}, None)
    """

    def __init__(self, record: RecordKind, maxsize: int = 65536, *, first: int = 0, name: str = "queue") -> None:
        if maxsize < 1:
            raise ConfigError(f"maxsize must be at least 1, got {maxsize}")
        if first < 0:
            raise ConfigError(f"first must not be negative, got {first}")
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
    def record(self) -> RecordKind:
        """Which message the records are."""
        return self._record

    @property
    def is_ordered(self) -> bool:
        """Whether a position is always followed by the same records: yes."""
        return True

    def put(self, records: Sequence[bytes] | _native.Records) -> None:
        """Append records; wait while the queue is full.

        Raises:
            ConfigError: The queue has ended or was closed: nobody would ever read them.
        """
        for index in range(len(records)):
            with self._changed:
                self._changed.wait_for(lambda: len(self._waiting) < self._maxsize or self._is_over)
                if self._is_over:
                    state = "closed" if self._is_closed else "ended"
                    raise ConfigError(f"{self._name} is {state}; put records before end() and close()")
                self._waiting.append(bytes(records[index]))
                self._drop_unwanted()
                self._changed.notify_all()

    def end(self) -> None:
        """Say that nothing more comes: ``read`` gives what waits, then None."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def read(self) -> _native.Records | None:
        """Return what waits, at most a few thousand records; wait for the first one. None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_over)
            if self._is_closed or not self._waiting:
                return None
            count = min(len(self._waiting), LOT_RECORDS)
            payloads = [self._waiting.popleft() for _ in range(count)]
            first = self._next
            self._next += count
            self._changed.notify_all()
        return _native.Records(payloads, self._name, range(first, first + count))

    def position(self) -> Position:
        """Return the number of the record that comes next."""
        with self._changed:
            return {"records": max(self._next, self._wanted)}

    def resume(self, position: Position, then: Sequence[Position] = ()) -> None:
        """Drop what comes before a place.

        Raises:
            DataError: That place is gone: the queue is past it.
        """
        wanted = int(position["records"])
        with self._changed:
            if wanted < self._next:
                raise DataError(
                    f"{self._name} is at record {self._next} and cannot go back to record {wanted}; a queue keeps "
                    f"nothing: let the producer start again there, with a queue made with first={wanted}"
                )
            self._wanted = wanted
            self._drop_unwanted()
            self._changed.notify_all()

    def committed(self, position: Position) -> None:
        """Do nothing: the queue keeps nothing."""

    def close(self) -> None:
        """Drop what waits; readers see the end, and writers an error."""
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
