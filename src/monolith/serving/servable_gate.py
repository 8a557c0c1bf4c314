"""A lock that many readers hold together and one writer alone; a writer that waits goes before later readers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Gate"]


class Gate:
    """Readers see what one writer left, never half of a change."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._waiting = 0
        self._is_writing = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Read, together with others."""
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
        """Change, alone."""
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
