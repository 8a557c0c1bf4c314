"""Signals of the system that ask the process to end: the run stops after its step, with a checkpoint.

The end of the data stops a run without a hook.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from monolith.training.hooks.base import Hook
from monolith.training.run import Run

__all__ = ["StopSignalHook"]

logger = logging.getLogger(__name__)


class StopSignalHook(Hook):
    """Stops the run on SIGTERM (what schedulers send first) or SIGINT (Ctrl-C), also while it is paused.

    A second signal of the same kind has its effect from before the run. Only the main thread can handle signals; a
    run in another thread does not change them.

    Args:
        signals: Which ones.
    """

    def __init__(self, signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT)) -> None:
        self._signals = tuple(signals)
        self._previous: dict[signal.Signals, Any] = {}
        self._pipe: tuple[int, int] | None = None
        self._watcher: threading.Thread | None = None

    def on_start(self, run: Run) -> None:
        """Take the signals over."""
        if threading.current_thread() is not threading.main_thread():
            logger.info("the run is not in the main thread; signals are left alone")
            return
        reading, writing = self._pipe = os.pipe()
        self._watcher = threading.Thread(target=_watch, args=(reading, run.stop), name="stop-signal", daemon=True)
        self._watcher.start()

        # The handler may interrupt any line of the loop, one that holds a lock too, so it takes none: it writes a byte,
        # and the watcher does the rest.
        def handle(number: int, frame: FrameType | None) -> None:
            signal.signal(number, self._previous[signal.Signals(number)])
            os.write(writing, bytes([number]))

        for each in self._signals:
            self._previous[each] = signal.getsignal(each)
            signal.signal(each, handle)

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """Give the signals back."""
        if self._pipe is None or self._watcher is None:
            return
        for each, previous in self._previous.items():
            signal.signal(each, previous)
        self._previous.clear()
        (reading, writing), self._pipe = self._pipe, None
        os.close(writing)  # ends the watcher
        self._watcher.join()
        self._watcher = None
        os.close(reading)


def _watch(reading: int, stop: Callable[[str], None]) -> None:
    while numbers := os.read(reading, 16):
        name = signal.Signals(numbers[-1]).name
        logger.info("the run ends after its step signal=%s", name)
        stop(f"the process was sent {name}")
