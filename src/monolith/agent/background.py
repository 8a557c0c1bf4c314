"""Run work in the background: on request, each interval, and again soon after a failure.

Main type: ``BackgroundLoop``. Requests that arrive while the work runs are one request.

Threading: one thread per loop. ``wake`` and ``stop`` may be called from any thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

__all__ = ["BackgroundLoop"]

logger = logging.getLogger(__name__)


class BackgroundLoop:
    """A thread that runs ``action`` after ``wake``, each ``interval_s``, and ``retry_s`` after a failure.

    Args:
        name: Name of the thread, for logs.
        action: The work; an exception is logged once per series of failures.
        interval_s: Longest pause between two runs; None = only on request.
        retry_s: Pause after a failure.
    """

    def __init__(
        self, name: str, action: Callable[[], None], *, interval_s: float | None = None, retry_s: float = 1.0
    ) -> None:
        self._name = name
        self._action = action
        self._interval_s = interval_s
        self._retry_s = retry_s
        self._lock = threading.Condition()
        self._is_woken = False
        self._is_stopped = False
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_stopped(self) -> bool:
        """True after ``stop``."""
        return self._is_stopped

    def start(self, *, immediately: bool = True) -> None:
        """Start the thread; the first run comes immediately, or after one interval."""
        self._is_woken = immediately
        self._thread.start()

    def wake(self) -> None:
        """Run the work as soon as possible."""
        with self._lock:
            self._is_woken = True
            self._lock.notify_all()

    def stop(self, timeout_s: float = 30.0) -> None:
        """End the thread and wait for a run under way; a second call does nothing."""
        with self._lock:
            self._is_stopped = True
            self._lock.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._is_woken and not self._is_stopped:
                    self._lock.wait(self._retry_s if self._has_failed else self._interval_s)
                if self._is_stopped:
                    return
                self._is_woken = False
            try:
                self._action()
            except Exception as error:
                log = logger.debug if self._has_failed else logger.warning
                kind = type(error).__name__
                log(
                    "background work failed, retrying name=%s retry_s=%g error=%s: %s",
                    self._name,
                    self._retry_s,
                    kind,
                    error,
                )
                self._has_failed = True
            else:
                self._has_failed = False
