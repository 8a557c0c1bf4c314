"""Base class of writable backends: life cycle and own registrations.

A subclass implements open, publish, withdraw, renew, read and shut. The base class owns their order and the locks.
"""

from __future__ import annotations

import abc
import logging
import threading
from typing import ClassVar

from monolith.core.errors import ClusterError, ConfigError, NoSuchService
from monolith.discovery._watching import LookingWatch
from monolith.discovery.base import Callback, ServiceInfo, Watch, checked_name, in_order

__all__: list[str] = []

logger = logging.getLogger(__name__)

# Timeout of close for a call under way; past it, services stay registered.
_CLOSE_PATIENCE_S = 5.0


class Backend(abc.ABC):
    """A writable discovery."""

    kind: ClassVar[str]
    needs_index: ClassVar[bool] = True

    def __init__(self, *, watch_interval_s: float | None) -> None:
        self._watch_interval_s = watch_interval_s
        self._connecting = threading.Lock()
        self._state_lock = threading.Lock()
        # Held while own registrations change in the store, so that a renewal cannot restore a withdrawn service.
        self._writing = threading.Lock()
        self._own: dict[str, ServiceInfo] = {}
        self._watches: set[LookingWatch] = set()
        self._is_open = False
        self._is_closed = threading.Event()

    # --- implemented by backends ---

    @abc.abstractmethod
    def _open(self) -> None:
        """Connect to the store."""

    @abc.abstractmethod
    def _publish(self, service: ServiceInfo) -> None:
        """Add a service to the store."""

    @abc.abstractmethod
    def _withdraw(self, service: ServiceInfo) -> None:
        """Remove a service from the store, unless another process has replaced it."""

    @abc.abstractmethod
    def _renew(self, service: ServiceInfo) -> None:
        """Send the heartbeat of a published service, and publish it again if the store lost it."""

    @abc.abstractmethod
    def _read(self, service_type: str) -> list[ServiceInfo]:
        """Return the services of a type, in any order."""

    def _prepare(self, service: ServiceInfo) -> None:
        """Clear the place of a service before it is published. May take long: no lock is held."""
        del service

    def _confirm(self, service: ServiceInfo) -> None:
        """Check that a published service is visible. May take long: no lock is held."""
        del service

    def _shut(self) -> None:
        """Disconnect from the store. Must not fail."""
        return

    # --- Discovery ---

    def connect(self) -> None:
        """Connect to the store. Idempotent."""
        with self._connecting:
            self._refuse_if_closed()
            if self._is_open:
                return
            self._open()
            with self._state_lock:
                self._is_open = not self._is_closed.is_set()
            if not self._is_open:
                self._shut()
                self._refuse_if_closed()

    def register(self, service: ServiceInfo) -> None:
        """Register a service until ``deregister`` or ``close``."""
        self._check_open()
        if self.needs_index and service.index is None:
            raise ConfigError(f"service {service.id!r} has no index; {self.kind} discovery needs one: give index=")
        self._prepare(service)
        with self._writing:
            self._check_open()
            self._publish(service)
            self._own[service.id] = service
        try:
            self._confirm(service)
        except BaseException:
            self._forget(service)
            raise

    def deregister(self, service_id: str) -> None:
        """Deregister a service that this object registered."""
        self._check_open()
        with self._writing:
            service = self._registered(service_id)
            self._withdraw(service)
            del self._own[service_id]

    def query(self, service_type: str) -> list[ServiceInfo]:
        """Return the services of a type, by index."""
        self._check_open()
        return in_order(self._read(checked_name("service_type", service_type)))

    def watch(self, service_type: str, callback: Callback) -> Watch:
        """Report the services of a type to ``callback``, then every change."""
        self._check_open()
        watch = self._make_watch(checked_name("service_type", service_type), callback)
        try:
            with self._state_lock:
                self._refuse_if_closed()
                self._watches.add(watch)
            watch.start()
        except BaseException:
            watch.close()
            raise
        return watch

    def heartbeat(self, service_id: str) -> None:
        """Send the heartbeat of a service; register it again if the store lost it."""
        self._check_open()
        with self._writing:
            self._renew(self._registered(service_id))

    def close(self) -> None:
        """Deregister own services, close watches and disconnect. Idempotent."""
        with self._state_lock:
            if self._is_closed.is_set():
                return
            self._is_closed.set()
            was_open, self._is_open = self._is_open, False
            watches = list(self._watches)
        for watch in watches:
            watch.close()
        if was_open:
            try:
                self._withdraw_all()
            finally:
                self._shut()

    # --- helpers ---

    def _make_watch(self, service_type: str, callback: Callback) -> LookingWatch:
        return LookingWatch(
            lambda: in_order(self._read(service_type)),
            callback,
            interval_s=self._watch_interval_s,
            on_close=self._drop_watch,
        )

    def _drop_watch(self, watch: LookingWatch) -> None:
        with self._state_lock:
            self._watches.discard(watch)

    def _registered(self, service_id: str) -> ServiceInfo:
        service = self._own.get(service_id)
        if service is None:
            known = ", ".join(sorted(self._own)) or "none"
            raise NoSuchService(f"Service not found: {service_id} is not registered by this process; it has: {known}")
        return service

    def _forget(self, service: ServiceInfo) -> None:
        with self._writing:
            if self._own.get(service.id) != service:
                return
            try:
                self._withdraw(service)
            except ClusterError as error:
                logger.warning("deregistration of a failed registration failed id=%s error=%s", service.id, error)
            del self._own[service.id]

    def _withdraw_all(self) -> None:
        if not self._writing.acquire(timeout=_CLOSE_PATIENCE_S):
            logger.warning("discovery closed during a call, services stay registered kind=%s", self.kind)
            return
        try:
            for service in self._own.values():
                try:
                    self._withdraw(service)
                except ClusterError as error:
                    # The expiry of the store, or the next process in this place, removes the entry.
                    logger.warning("deregistration failed id=%s error=%s", service.id, error)
            self._own.clear()
        finally:
            self._writing.release()

    def _check_open(self) -> None:
        self._refuse_if_closed()
        if not self._is_open:
            raise ClusterError(f"{self.kind} discovery is not connected; call connect() first")

    def _refuse_if_closed(self) -> None:
        if self._is_closed.is_set():
            raise ClusterError(f"{self.kind} discovery is closed; open another one")
