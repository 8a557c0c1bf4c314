"""``DiscoveryGuard``: connects a discovery for the life of a role, and closes it."""

from __future__ import annotations

import threading
from types import TracebackType

from monolith.core.errors import ClusterError
from monolith.discovery.base import Callback, Discovery, ServiceInfo, Watch

__all__ = ["DiscoveryGuard"]


class DiscoveryGuard:
    """Connects a discovery on entry and closes it on exit; forwards all calls in between.

    After ``close``, and without a discovery (a job of one process), every call except ``close`` is refused.

    >>> from monolith.discovery import MemoryDiscovery, ServiceInfo
    >>> with DiscoveryGuard(MemoryDiscovery()) as discovery:
    ...     discovery.register(ServiceInfo(service_type="ps", index=0, host="localhost", port=2222))
    ...     [one.address for one in discovery.query("ps")]
    ['localhost:2222']
    >>> discovery.kind
    'local'

    Args:
        discovery: The discovery; None in a job of one process.
    """

    def __init__(self, discovery: Discovery | None) -> None:
        self._lock = threading.Lock()
        self._discovery = discovery

    @property
    def kind(self) -> str:
        """Name of the backend; ``local`` without one, or after ``close``."""
        discovery = self._discovery
        return "local" if discovery is None else discovery.kind

    def connect(self) -> None:
        """Connect to the store."""
        self._backend().connect()

    def register(self, service: ServiceInfo) -> None:
        """Register a service."""
        self._backend().register(service)

    def deregister(self, service_id: str) -> None:
        """Deregister a service."""
        self._backend().deregister(service_id)

    def query(self, service_type: str) -> list[ServiceInfo]:
        """Return the services of a type, by index."""
        return self._backend().query(service_type)

    def watch(self, service_type: str, callback: Callback) -> Watch:
        """Report the services of a type to ``callback``."""
        return self._backend().watch(service_type, callback)

    def heartbeat(self, service_id: str) -> None:
        """Send the heartbeat of a service."""
        self._backend().heartbeat(service_id)

    def close(self) -> None:
        """Close the discovery. Idempotent."""
        with self._lock:
            discovery, self._discovery = self._discovery, None
        if discovery is not None:
            discovery.close()

    def __enter__(self) -> DiscoveryGuard:
        if self._discovery is not None:
            try:
                self.connect()
            except BaseException:
                self.close()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _backend(self) -> Discovery:
        discovery = self._discovery
        if discovery is None:
            raise ClusterError(
                "No discovery backend available in local mode, or it is closed; several processes need discovery_type"
            )
        return discovery
