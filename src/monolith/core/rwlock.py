"""``ReadWriteLock``: many readers share it, one writer holds it alone. A waiting writer precedes later readers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["ReadWriteLock"]


class ReadWriteLock:
    """Lock for data with many readers and rare changes. Not reentrant."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._waiting = 0
        self._is_writing = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the lock together with other readers."""
        with self._changed:
            while self._is_writing or self._waiting:
                self._changed.wait()
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                if not self._readers:
                    self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock alone."""
        with self._changed:
            self._waiting += 1
            try:
                while self._is_writing or self._readers:
                    self._changed.wait()
                self._is_writing = True
            finally:
                self._waiting -= 1
        try:
            yield
        finally:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
