"""``SignalHook``: Ctrl-C and SIGTERM end a run with a checkpoint instead of losing work."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType
from typing import Any

from monolith.training.hooks.base import Hook, Run

__all__ = ["SignalHook"]

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class SignalHook(Hook):
    """Stops the run at the next step boundary on the first signal; a second one does what it always did.

    Works in the main thread only; elsewhere it leaves signals alone.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}

    def on_start(self, run: Run) -> None:
        """Take the signals over."""
        if threading.current_thread() is not threading.main_thread():
            return

        def stop(number: int, frame: FrameType | None) -> None:
            name = signal.Signals(number).name
            logger.warning("%s: stopping after this step; once more ends at once, without a checkpoint", name)
            self._give_back()
            run.stop(name)

        for each in _SIGNALS:
            self._before[each] = signal.signal(each, stop)

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """Give the signals back."""
        self._give_back()

    def _give_back(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())
