"""``ReadAhead``: an iterator whose items a thread produces in advance."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

from monolith.data.records._channel import ThreadChannel

__all__ = ["ReadAhead"]

T = TypeVar("T")


class ReadAhead(Generic[T]):
    """The items of ``source``, up to ``depth`` of them made before they are asked for.

    An exception of the source is raised in its turn. ``close`` ends the thread, and a wait for it.
    """

    def __init__(self, source: Iterator[T], depth: int) -> None:
        self._channel: ThreadChannel[tuple[T | None, Exception | None]] = ThreadChannel(depth)
        self._thread = threading.Thread(
            target=_produce, args=(source, self._channel), name="monolith-read-ahead", daemon=True
        )
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        item, error = self._channel.get() or (None, None)
        if error is not None:
            self._channel.close()
            raise error
        if item is None:
            self._channel.close()
            raise StopIteration
        return item

    def close(self) -> None:
        """End it. May be called twice, from any thread."""
        self._channel.close()
        self._thread.join()

    def __del__(self) -> None:
        self._channel.close()  # the thread then ends by itself


def _produce(source: Iterator[T], channel: ThreadChannel[tuple[T | None, Exception | None]]) -> None:
    try:
        for item in source:
            if not channel.put((item, None)):
                return
        channel.put((None, None))
    except Exception as error:  # raised in the consumer's thread
        channel.put((None, error))
