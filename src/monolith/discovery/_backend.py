"""What all backends that can be written to have in common: the life cycle, and the book of own registrations.

A backend says how to open, publish, withdraw, renew, read and shut; the order of these, and the locks, are here.
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

# How long closing waits for a call under way before it leaves the store without withdrawing.
_CLOSE_PATIENCE_S = 5.0


class Backend(abc.ABC):
    """A writable discovery."""

    kind: ClassVar[str]
    needs_index: ClassVar[bool] = True

    def __init__(self, *, watch_interval_s: float | None) -> None:
        self._watch_interval_s = watch_interval_s
        self._state_lock = threading.Lock()
        # Held while own registrations change in the store, so that a renewal cannot bring back what was withdrawn.
        self._writing = threading.Lock()
        self._own: dict[str, ServiceInfo] = {}
        self._watches: set[LookingWatch] = set()
        self._is_open = False
        self._is_closed = threading.Event()

    # --- what a backend says ---

    @abc.abstractmethod
    def _open(self) -> None:
        """Reach the store."""

    @abc.abstractmethod
    def _publish(self, service: ServiceInfo) -> None:
        """Put a service into the store."""

    @abc.abstractmethod
    def _withdraw(self, service: ServiceInfo) -> None:
        """Take a service out of the store, where it still is the one."""

    @abc.abstractmethod
    def _renew(self, service: ServiceInfo) -> None:
        """Say that a published service is alive, and put it back where it is lost."""

    @abc.abstractmethod
    def _read(self, service_type: str) -> list[ServiceInfo]:
        """Return the services of a type, in any order."""

    def _prepare(self, service: ServiceInfo) -> None:
        """Make room for a service that is about to be published. May take long: no lock is held."""
        del service

    def _confirm(self, service: ServiceInfo) -> None:
        """See that a published service is there. May take long: no lock is held."""
        del service

    def _shut(self) -> None:
        """Leave the store. Must not fail."""
        return

    # --- what the Protocol asks ---

    def connect(self) -> None:
        """Reach the store; a second call does nothing."""
        with self._state_lock:
            self._refuse_if_closed()
            if not self._is_open:
                self._open()
                self._is_open = True

    def register(self, service: ServiceInfo) -> None:
        """Make a service known until it is deregistered, or this object is closed."""
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
        """Withdraw a service that this object registered."""
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
        """Tell of services of a type: those that are there, then every change."""
        self._check_open()
        watch = self._make_watch(checked_name("service_type", service_type), callback)
        with self._state_lock:
            self._watches.add(watch)
        try:
            watch.start()
        except BaseException:
            watch.close()
            raise
        return watch

    def heartbeat(self, service_id: str) -> None:
        """Say that a service is alive; a registration that the store has lost is put back."""
        self._check_open()
        with self._writing:
            self._renew(self._registered(service_id))

    def close(self) -> None:
        """Withdraw what this object registered, end its watches and leave the store; a second call does nothing."""
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
            lambda: self.query(service_type),
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
                logger.warning("could not withdraw a failed registration id=%s error=%s", service.id, error)
            del self._own[service.id]

    def _withdraw_all(self) -> None:
        if not self._writing.acquire(timeout=_CLOSE_PATIENCE_S):
            logger.warning("closed discovery during a call, own services are not withdrawn kind=%s", self.kind)
            return
        try:
            for service in self._own.values():
                try:
                    self._withdraw(service)
                except ClusterError as error:
                    # What is left lapses: the store's own expiry, or the next process in this place, removes it.
                    logger.warning("could not withdraw a service at close id=%s error=%s", service.id, error)
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
