"""``StopEventHook``: ends a run when an event is set, for processes that signals do not reach."""

from __future__ import annotations

import threading

from typing_extensions import override

from monolith.training.hooks.base import Hook
from monolith.training.run import Run

__all__ = ["StopEventHook"]

_LOOK_S = 0.5


class StopEventHook(Hook):
    """Stops the run when the event is set, also while the run waits for data.

    Args:
        event: The event.
        reason: The stop reason of the run.
    """

    def __init__(self, event: threading.Event, reason: str) -> None:
        self._event = event
        self._reason = reason
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None

    @override
    def on_start(self, run: Run) -> None:
        self._over.clear()
        self._watcher = threading.Thread(target=self._watch, args=(run,), name="stop-event", daemon=True)
        self._watcher.start()

    @override
    def on_end(self, run: Run, error: BaseException | None) -> None:
        self._over.set()
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None

    def _watch(self, run: Run) -> None:
        while not self._over.is_set():
            if self._event.wait(_LOOK_S):
                run.stop(self._reason)
                return
