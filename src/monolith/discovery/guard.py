"""A discovery that is surely closed: the guard that a role holds while it runs."""

from __future__ import annotations

import threading
from types import TracebackType

from monolith.core.errors import ClusterError
from monolith.discovery.base import Callback, Discovery, ServiceInfo, Watch

__all__ = ["DiscoveryGuard"]


class DiscoveryGuard:
    """Connects a discovery on entry and closes it on exit; forwards all calls in between.

    After ``close``, and in a job of one process, which has no discovery, every call but ``close`` is refused.

    >>> from monolith.discovery import MemoryDiscovery, ServiceInfo
    >>> with DiscoveryGuard(MemoryDiscovery()) as discovery:
    ...     discovery.register(ServiceInfo(service_type="ps", index=0, host="localhost", port=2222))
    ...     [one.address for one in discovery.query("ps")]
    ['localhost:2222']
    >>> discovery.kind
    'local'

    Args:
        discovery: What to guard; None in a job of one process.
    """

    def __init__(self, discovery: Discovery | None) -> None:
        self._lock = threading.Lock()
        self._discovery = discovery

    @property
    def kind(self) -> str:
        """Which backend this is; ``local`` when there is none, or none any more."""
        discovery = self._discovery
        return "local" if discovery is None else discovery.kind

    def connect(self) -> None:
        """Reach the store."""
        self._backend().connect()

    def register(self, service: ServiceInfo) -> None:
        """Make a service known."""
        self._backend().register(service)

    def deregister(self, service_id: str) -> None:
        """Withdraw a service."""
        self._backend().deregister(service_id)

    def query(self, service_type: str) -> list[ServiceInfo]:
        """Return the services of a type, by index."""
        return self._backend().query(service_type)

    def watch(self, service_type: str, callback: Callback) -> Watch:
        """Tell of services of a type."""
        return self._backend().watch(service_type, callback)

    def heartbeat(self, service_id: str) -> None:
        """Say that a service is alive."""
        self._backend().heartbeat(service_id)

    def close(self) -> None:
        """Close the discovery; a second call does nothing."""
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
