"""``Channel``: a bounded queue between one producer thread and one consumer thread, which either side can close."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

__all__ = ["ThreadChannel"]

T = TypeVar("T")


class ThreadChannel(Generic[T]):
    """First in, first out. ``close`` ends every wait on both sides and drops the remaining items."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._is_closed = False

    def put(self, item: T) -> bool:
        """Wait for space and add an item; return False if the channel is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or len(self._items) < self._capacity)
            if self._is_closed:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def get(self) -> T | None:
        """Wait for an item and return it; None if the channel is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or bool(self._items))
            if self._is_closed:
                return None
            self._changed.notify_all()
            return self._items.popleft()

    def close(self) -> None:
        """Close the channel. May be called twice, from any thread."""
        with self._changed:
            self._is_closed = True
            self._items.clear()
            self._changed.notify_all()
