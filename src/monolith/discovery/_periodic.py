"""Background thread that runs a callback periodically or when woken."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

__all__: list[str] = []

logger = logging.getLogger(__name__)


class Periodic:
    """Calls ``action`` every ``interval_s``, immediately after ``wake``, and ``retry_s`` after a failure."""

    def __init__(self, name: str, action: Callable[[], None], *, interval_s: float, retry_s: float) -> None:
        self._name = name
        self._action = action
        self._interval_s = interval_s
        self._retry_s = min(retry_s, interval_s)
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; the first call comes after one interval."""
        self._thread.start()

    def wake(self) -> None:
        """Call ``action`` as soon as possible."""
        self._wake.set()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop the thread; wait at most ``timeout_s`` for a call under way. Callable from ``action`` itself."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        pause_s = self._interval_s
        was_failing = False
        while True:
            self._wake.wait(pause_s)
            self._wake.clear()
            if self._stop.is_set():
                return
            try:
                self._action()
            except Exception as error:
                if self._stop.is_set():
                    return
                # One warning per outage: a store that is unreachable for an hour must not fill the log.
                log = logger.debug if was_failing else logger.warning
                log("periodic work failed, retrying name=%s retry_s=%g error=%s", self._name, self._retry_s, error)
                was_failing, pause_s = True, self._retry_s
            else:
                was_failing, pause_s = False, self._interval_s
