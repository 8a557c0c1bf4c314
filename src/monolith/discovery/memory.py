"""Discovery within one process: for tests, and for jobs whose roles are threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ClassVar

from typing_extensions import override

from monolith.core.errors import AlreadyRegistered
from monolith.discovery._backend import Backend
from monolith.discovery._watching import LookingWatch
from monolith.discovery.base import Callback, ServiceInfo

__all__ = ["MemoryDiscovery", "MemoryRegistry"]


class MemoryRegistry:
    """The services that the ``MemoryDiscovery`` objects of one job share."""

    def __init__(self) -> None:
        self._services: dict[str, ServiceInfo] = {}
        self._reading = threading.Lock()
        # Held while listeners run, so that all of them see the same order. Re-entrant: a listener may register.
        self._changing = threading.RLock()
        self._listeners: dict[object, Callable[[], None]] = {}

    def read(self, service_type: str) -> list[ServiceInfo]:
        """Return the services of a type."""
        with self._reading:
            return [one for one in self._services.values() if one.service_type == service_type]

    def put(self, service: ServiceInfo) -> None:
        """Add a service, or replace one if ``allows_update``.

        Raises:
            AlreadyRegistered: The id is taken.
        """
        with self._changing:
            holder = self._services.get(service.id)
            if holder is not None and not service.allows_update:
                raise AlreadyRegistered(
                    f"Service already registered: {service.id} at {holder.address}; "
                    f"metadata allow_update='true' replaces it"
                )
            with self._reading:
                self._services[service.id] = service
            self._notify()

    def restore(self, service: ServiceInfo) -> None:
        """Add a service if it is missing.

        Raises:
            AlreadyRegistered: Another service has its id.
        """
        with self._changing:
            holder = self._services.get(service.id)
            if holder is None:
                self.put(service)
            elif holder != service:
                raise AlreadyRegistered(f"Service already registered: {service.id} was taken over by {holder.address}")

    def remove(self, service: ServiceInfo) -> None:
        """Remove exactly this service; a service that has replaced it stays."""
        with self._changing:
            if self._services.get(service.id) == service:
                with self._reading:
                    del self._services[service.id]
                self._notify()

    def clear(self) -> None:
        """Remove all services, like the restart of a store without state."""
        with self._changing:
            with self._reading:
                self._services.clear()
            self._notify()

    def listen(self, key: object, listener: Callable[[], None]) -> None:
        """Call ``listener`` after every change, in the thread that made it."""
        with self._changing:
            self._listeners[key] = listener

    def ignore(self, key: object) -> None:
        """Remove the listener of this key."""
        with self._changing:
            self._listeners.pop(key, None)

    def _notify(self) -> None:
        for listener in list(self._listeners.values()):
            listener()


class MemoryDiscovery(Backend):
    """One process's view of a ``MemoryRegistry``; callbacks run in the thread that made the change.

    Args:
        registry: Registry shared by the processes of a job; None = a new one.
    """

    kind: ClassVar[str] = "memory"
    needs_index: ClassVar[bool] = False

    def __init__(self, registry: MemoryRegistry | None = None) -> None:
        super().__init__(watch_interval_s=None)
        self.registry = registry or MemoryRegistry()

    @override
    def _open(self) -> None:
        return

    @override
    def _publish(self, service: ServiceInfo) -> None:
        self.registry.put(service)

    @override
    def _withdraw(self, service: ServiceInfo) -> None:
        self.registry.remove(service)

    @override
    def _renew(self, service: ServiceInfo) -> None:
        self.registry.restore(service)

    @override
    def _read(self, service_type: str) -> list[ServiceInfo]:
        return self.registry.read(service_type)

    @override
    def _make_watch(self, service_type: str, callback: Callback) -> LookingWatch:
        watch = super()._make_watch(service_type, callback)
        self.registry.listen(watch, watch.look)
        return watch

    @override
    def _drop_watch(self, watch: LookingWatch) -> None:
        self.registry.ignore(watch)
        super()._drop_watch(watch)
