"""Ends a run when an event is set: for those who are not reached by signals."""

from __future__ import annotations

import threading

from monolith.training.hooks.base import Hook
from monolith.training.run import Run

__all__ = ["StopEventHook"]

_LOOK_S = 0.5


class StopEventHook(Hook):
    """Stops the run when somebody sets the event, also while the run waits for data.

    Args:
        event: What is set.
        reason: What the run says of it.
    """

    def __init__(self, event: threading.Event, reason: str) -> None:
        self._event = event
        self._reason = reason
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None

    def on_start(self, run: Run) -> None:
        """Begin to watch."""
        self._over.clear()
        self._watcher = threading.Thread(target=self._watch, args=(run,), name="stop-event", daemon=True)
        self._watcher.start()

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """Watch no more."""
        self._over.set()
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None

    def _watch(self, run: Run) -> None:
        while not self._over.is_set():
            if self._event.wait(_LOOK_S):
                run.stop(self._reason)
                return
