"""Discovery through Consul: one service per job, whose instances carry type and index in their tags.

An instance has a check with a TTL of one minute. A thread passes it every half minute, so a dead process disappears
soon.
"""

from __future__ import annotations

import logging
from typing import ClassVar

from typing_extensions import override

from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import AlreadyRegistered, ClusterError, ConfigError
from monolith.discovery._backend import Backend
from monolith.discovery._periodic import Periodic
from monolith.discovery.base import ServiceInfo, checked_name
from monolith.discovery.consul_agent import ConsulAgent, ConsulEntry

__all__ = ["ConsulDiscovery"]

logger = logging.getLogger(__name__)

_TTL_S = 60
_CLEAR_PAUSE_S = 3.0
# Longer than a dead holder stays listed.
_CLEAR_TRIES = 40
_VISIBLE_PAUSE_S = 5.0
_VISIBLE_TRIES = 36


class ConsulDiscovery(Backend):
    """Services as instances of one Consul service.

    Args:
        agent: The agent to talk to.
        job: The name of the Consul service.
        heartbeat_period_s: Seconds between passes of the checks.
        watch_interval_s: Seconds between the reads of a watch.
        clock: Measures pauses.
    """

    kind: ClassVar[str] = "consul"

    def __init__(
        self,
        agent: ConsulAgent,
        job: str,
        *,
        heartbeat_period_s: float = _TTL_S / 2,
        watch_interval_s: float = 2.0,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(watch_interval_s=watch_interval_s)
        self._agent = agent
        self._job = checked_name("job", job)
        self._clock = clock or SystemClock()
        self._heartbeats = Periodic("consul-heartbeat", self._beat_all, interval_s=heartbeat_period_s, retry_s=2.0)

    @override
    def _open(self) -> None:
        self._agent.lookup(self._job)
        self._heartbeats.start()

    @override
    def _prepare(self, service: ServiceInfo) -> None:
        """Deregister other holders of the place, repeatedly: an agent may restore its instances."""
        for attempt in range(_CLEAR_TRIES):
            holders = [entry for entry in self._holders(service) if entry.address != service.address]
            if not holders:
                return
            if attempt > 0:
                self._pause(_CLEAR_PAUSE_S)
            for entry in holders:
                self._agent.deregister(entry.service_id, entry.node)
        raise ClusterError(
            f"Timed out clearing existing consul registration for {service.service_type}.{service.index}, "
            f"held by {holders[0].address}; stop that process, or give this job another uuid"
        )

    @override
    def _publish(self, service: ServiceInfo) -> None:
        self._agent.register(self._job, service, _TTL_S)
        self._agent.pass_check(self._agent.service_id(self._job, service))

    @override
    def _confirm(self, service: ServiceInfo) -> None:
        """Wait until the service is listed. Of several concurrent registrations, the first address stays."""
        for attempt in range(_VISIBLE_TRIES + 1):
            if attempt > 0:
                self._pause(_VISIBLE_PAUSE_S)
            self._refuse_if_taken(service)
            rivals = self._holders(service)
            addresses = [entry.address for entry in rivals]
            if service.address not in addresses:
                continue
            if min(addresses) != service.address:
                raise _taken(service, min(addresses))
            for entry in rivals:
                if entry.address != service.address:
                    self._agent.deregister(entry.service_id, entry.node)
            return
        raise ClusterError(
            f"This machine is blacklisted by consul. {service.id} at {service.address} was registered at "
            f"{self._agent.endpoint}, but is not listed after {_VISIBLE_TRIES * _VISIBLE_PAUSE_S:g} s"
        )

    @override
    def _withdraw(self, service: ServiceInfo) -> None:
        entry_id = self._agent.service_id(self._job, service)
        if self._agent.is_held(entry_id, service.address):  # else another process has taken the id, or takes it now
            self._agent.deregister(entry_id)

    @override
    def _renew(self, service: ServiceInfo) -> None:
        self._refuse_if_taken(service)
        if not self._agent.pass_check(self._agent.service_id(self._job, service)):
            logger.warning("registration lost by Consul, registering again id=%s", service.id)
            self._publish(service)

    @override
    def _read(self, service_type: str) -> list[ServiceInfo]:
        services = []
        for entry in self._agent.lookup(self._job):
            if entry.tags.get("name") == service_type:
                try:
                    services.append(_service(service_type, entry))
                except ConfigError as error:
                    logger.warning("invalid Consul instance skipped id=%s error=%s", entry.service_id, error)
        return services

    @override
    def _shut(self) -> None:
        self._heartbeats.stop()

    def _holders(self, service: ServiceInfo) -> list[ConsulEntry]:
        place = (service.service_type, str(service.index))
        return [
            entry
            for entry in self._agent.lookup(self._job)
            if (entry.tags.get("name"), entry.tags.get("index")) == place
        ]

    def _refuse_if_taken(self, service: ServiceInfo) -> None:
        addresses = [entry.address for entry in self._holders(service)]
        if addresses and service.address not in addresses:
            raise _taken(service, addresses[0])
        # A successor whose check fails is not listed; passing its check as ours would revive it.
        holder = self._agent.holder(self._agent.service_id(self._job, service))
        if holder not in (None, service.address):
            raise _taken(service, str(holder))

    def _beat_all(self) -> None:
        with self._writing:
            for service in list(self._own.values()):
                try:
                    self._renew(service)
                except AlreadyRegistered as error:
                    logger.warning("registration not renewed id=%s error=%s", service.id, error)

    def _pause(self, seconds: float) -> None:
        self._clock.sleep_s(seconds)
        self._check_open()


def _taken(service: ServiceInfo, address: str) -> AlreadyRegistered:
    return AlreadyRegistered(f"Service already registered: {service.id} was taken over by {address}")


def _service(service_type: str, entry: ConsulEntry) -> ServiceInfo:
    index = entry.tags.get("index")
    if index is not None and index.isascii() and index.isdigit():
        return ServiceInfo(service_type=service_type, index=int(index), host=entry.host, port=entry.port)
    metadata = {} if index is None else {"index": index}
    return ServiceInfo(service_type=service_type, host=entry.host, port=entry.port, metadata=metadata)
