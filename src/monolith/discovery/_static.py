"""Base class of read-only discoveries, whose services a launcher has fixed."""

from __future__ import annotations

import abc
import threading
from typing import ClassVar

from monolith.core.errors import ClusterError, ConfigError
from monolith.discovery._watching import LookingWatch
from monolith.discovery.base import Callback, ServiceInfo, Watch

__all__: list[str] = []

SERVICE_TYPES = ("ps", "worker")


def checked_service_type(service_type: str) -> str:
    """Return ``ps`` or ``worker``, or raise ``ConfigError``."""
    if service_type not in SERVICE_TYPES:
        raise ConfigError(f"service_type is {service_type!r}; name must be ps/worker")
    return service_type


class StaticDiscovery(abc.ABC):
    """A discovery with fixed services."""

    kind: ClassVar[str]
    watch_interval_s: ClassVar[float | None] = None

    def __init__(self) -> None:
        self._is_connected = False
        self._is_closed = False
        self._lock = threading.Lock()
        self._watches: set[LookingWatch] = set()

    @abc.abstractmethod
    def query(self, service_type: str) -> list[ServiceInfo]:
        """Return the services of a type, by index."""

    def connect(self) -> None:
        """Mark the discovery as connected; there is no store to reach."""
        self._refuse_if_closed()
        self._is_connected = True

    def watch(self, service_type: str, callback: Callback) -> Watch:
        """Report the services of a type to ``callback``, then every change."""
        self._check_open()
        watch = LookingWatch(
            lambda: self.query(service_type),
            callback,
            interval_s=self.watch_interval_s,
            on_close=self._drop_watch,
        )
        with self._lock:
            self._refuse_if_closed()
            self._watches.add(watch)
        try:
            watch.start()
        except BaseException:
            watch.close()
            raise
        return watch

    def close(self) -> None:
        """Close the watches. Idempotent."""
        with self._lock:
            self._is_closed = True
            watches = list(self._watches)
        for watch in watches:
            watch.close()

    def _drop_watch(self, watch: LookingWatch) -> None:
        with self._lock:
            self._watches.discard(watch)

    def _check_open(self) -> None:
        self._refuse_if_closed()
        if not self._is_connected:
            raise ClusterError(f"{self.kind} discovery is not connected; call connect() first")

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise ClusterError(f"{self.kind} discovery is closed; open another one")
