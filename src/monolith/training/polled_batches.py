"""``PolledBatches``: batches of a stream, with a call in the loop's thread while the stream has none.

A thread reads one batch when the loop asks for it, and never ahead. The loop handles requests for stops and
checkpoints while it waits, so an idle stream delays neither.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

from typing_extensions import override

__all__ = ["PolledBatches"]

_POLL_S = 0.2
_CLOSE_S = 60.0
"""Wait for a source that was interrupted."""
_END = object()


class PolledBatches(Iterator[Any]):
    """Iterates over a generator in another thread. Used by one thread.

    Args:
        batches: Read by the thread.
        on_idle: Called about every ``poll_s`` while no batch is ready; False ends the iteration.
        interrupt: Ends a wait of the source; called from the thread of ``close``.
        poll_s: Seconds between two calls.
    """

    def __init__(
        self,
        batches: Generator[Any, None, None],
        on_idle: Callable[[], bool],
        interrupt: Callable[[], None],
        poll_s: float = _POLL_S,
    ) -> None:
        self._batches = batches
        self._on_idle = on_idle
        self._interrupt = interrupt
        self._poll_s = poll_s
        self._requests: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_asked = False

    @override
    def __next__(self) -> Any:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="stream-batches", daemon=True)
            self._thread.start()
        if not self._is_asked:
            self._requests.put(True)
            self._is_asked = True
        while True:
            try:
                item, error = self._answers.get(timeout=self._poll_s)
            except queue.Empty:
                if not self._on_idle():
                    raise StopIteration from None
                continue
            self._is_asked = False
            if error is not None:
                raise error
            if item is _END:
                raise StopIteration
            return item

    def _run(self) -> None:
        while self._requests.get():
            try:
                self._answers.put((next(self._batches, _END), None))
            except BaseException as error:  # raised by the iterating thread
                self._answers.put((None, error))

    def close(self) -> None:
        """Interrupt the source, end the thread, and close the generator."""
        if self._thread is not None:
            self._requests.put(False)
            if self._is_asked:
                self._interrupt()
            self._thread.join(_CLOSE_S)
            if self._thread.is_alive():
                return  # the source ignores its end; the generator is in use
            self._thread = None
        self._batches.close()
