"""``LookingWatch``: polls a store, compares with the last read, and reports the difference."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from types import TracebackType

from monolith.discovery._periodic import Periodic
from monolith.discovery.base import Added, Callback, Event, Removed, ServiceInfo, Updated

__all__: list[str] = []

logger = logging.getLogger(__name__)

_RETRY_S = 1.0
_CLOSE_PATIENCE_S = 5.0


def differences(before: dict[str, ServiceInfo], after: dict[str, ServiceInfo]) -> list[Event]:
    """Return the events between two reads, removals first."""
    events: list[Event] = [Removed(before[key]) for key in before if key not in after]
    for key, service in after.items():
        if key not in before:
            events.append(Added(service))
        elif before[key] != service:
            events.append(Updated(service))
    return events


def deliver(callback: Callback, event: Event) -> None:
    """Call ``callback``; log its exception, which must not end the watch."""
    try:
        callback(event)
    except Exception:
        logger.exception("watch callback failed event=%r", event)


class LookingWatch:
    """Reports changes since the last read.

    Args:
        read: Returns the current services.
        callback: Gets the events.
        interval_s: Seconds between reads of a background thread; None if the store calls ``look``.
        on_close: Called once, when the watch closes.
    """

    def __init__(
        self,
        read: Callable[[], Iterable[ServiceInfo]],
        callback: Callback,
        *,
        interval_s: float | None,
        on_close: Callable[[LookingWatch], None],
    ) -> None:
        self._read = read
        self._callback = callback
        self._on_close = on_close
        self._known: dict[str, ServiceInfo] = {}
        # Re-entrant: a callback may close its own watch, or change the store that then calls ``look``.
        self._looking = threading.RLock()
        self._closed = threading.Event()
        self._periodic: Periodic | None = None
        if interval_s is not None:
            self._periodic = Periodic("discovery-watch", self.look, interval_s=interval_s, retry_s=_RETRY_S)

    def start(self) -> None:
        """Report the current services, then start to poll. Raises the error of the first read."""
        self.look()
        if self._periodic is not None:
            self._periodic.start()

    def wake(self) -> None:
        """Read as soon as possible."""
        if self._periodic is not None:
            self._periodic.wake()

    def look(self) -> None:
        """Read once and report the difference."""
        with self._looking:
            if self._closed.is_set():
                return
            after = {service.id: service for service in self._read()}
            events = differences(self._known, after)
            self._known = after
            for event in events:
                if self._closed.is_set():
                    return
                deliver(self._callback, event)

    def close(self) -> None:
        """Close the watch; wait a bounded time for a callback under way."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._periodic is not None:
            self._periodic.stop(_CLOSE_PATIENCE_S)
        if self._looking.acquire(timeout=_CLOSE_PATIENCE_S):
            self._looking.release()
        self._on_close(self)

    def __enter__(self) -> LookingWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
