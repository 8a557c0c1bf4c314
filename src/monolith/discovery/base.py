"""The ``Discovery`` Protocol: services that are registered, queried and watched."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Protocol, TypeAlias, runtime_checkable

from monolith.core.errors import ConfigError
from monolith.discovery.address import checked_host, checked_port, is_whole, join_address

__all__ = [
    "Added",
    "Callback",
    "Discovery",
    "Event",
    "Health",
    "Removed",
    "ServiceInfo",
    "Updated",
    "Watch",
    "checked_name",
    "in_order",
]

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*\Z")


class Health(enum.StrEnum):
    """Health that a service reports."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    STARTING = "starting"
    STOPPING = "stopping"


def checked_name(field_name: str, value: str) -> str:
    """Return a name that every backend can store, or raise ``ConfigError``."""
    if not _NAME.match(str(value)):
        raise ConfigError(
            f"{field_name} is {value!r}; give letters, digits, '_', '-' and '.', not starting with '.', without blanks"
        )
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceInfo:
    """One process that other processes can find.

    The place of a service is its type and its index. Backends that store only an address per place (file, ZooKeeper,
    Consul) return the id ``<type>-<index>`` and no metadata.
    """

    service_type: str
    """Role of the process: ps, worker, ..."""
    index: int | None = None
    """Number among the services of its type; None without a number."""
    host: str
    """A name or an IP address, without brackets."""
    port: int
    """Port that it listens on; 0 = none."""
    id: str = ""
    """Unique name among all services; default ``<type>-<index>``."""
    name: str = ""
    """Display name; default is the id."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Further values. ``allow_update="true"`` lets a registration replace an older one of the same id."""
    health: Health = Health.UNKNOWN
    """Health at registration."""

    def __post_init__(self) -> None:
        checked_name("service_type", self.service_type)
        if self.index is not None and not is_whole(self.index):
            raise ConfigError(f"index of a {self.service_type} is {self.index!r}; give a whole number of at least 0")
        object.__setattr__(self, "host", checked_host(self.host))
        checked_port(self.port)
        if not self.id:
            tail = self.address if self.index is None else str(self.index)
            object.__setattr__(self, "id", f"{self.service_type}-{tail}")
        object.__setattr__(self, "name", self.name or self.id)
        object.__setattr__(self, "metadata", MappingProxyType(dict(self.metadata)))

    @property
    def address(self) -> str:
        """``host:port``, with brackets around IPv6."""
        return join_address(self.host, self.port)

    @property
    def allows_update(self) -> bool:
        """Whether this registration may replace an older one, in backends that check it."""
        return self.metadata.get("allow_update") == "true"


def in_order(services: Iterable[ServiceInfo]) -> list[ServiceInfo]:
    """Return services sorted by index; services without an index come last, sorted by address."""
    return sorted(services, key=lambda one: (one.index is None, one.index or 0, one.address, one.id))


@dataclass(frozen=True, slots=True)
class Added:
    """A service has appeared."""

    service: ServiceInfo


@dataclass(frozen=True, slots=True)
class Updated:
    """The address or metadata of a service has changed."""

    service: ServiceInfo


@dataclass(frozen=True, slots=True)
class Removed:
    """A service has disappeared; ``service`` is its last state."""

    service: ServiceInfo


Event: TypeAlias = Added | Updated | Removed
Callback: TypeAlias = Callable[[Event], None]


@runtime_checkable
class Watch(Protocol):
    """A running watch; also a context manager that closes it."""

    def close(self) -> None:
        """Close the watch. Idempotent; after return no further callback starts."""
        ...

    def __enter__(self) -> Watch: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class Discovery(Protocol):
    """Registry through which the processes of a job find each other. Thread safe.

    Every call except ``close`` raises a ``ClusterError`` before ``connect`` and after ``close``. A failure of the store
    is a ``ClusterError`` too. Its ``retryable`` tells whether the same call may succeed later; ``RetriesExhausted``
    means that the backend has retried already.
    """

    @property
    def kind(self) -> str:
        """Name of the backend: memory, file, tf_config, mlp, zookeeper, consul, or local (none)."""
        ...

    def connect(self) -> None:
        """Connect to the store. Idempotent.

        Raises:
            ConnectionFailed: The store is unreachable.
        """
        ...

    def register(self, service: ServiceInfo) -> None:
        """Register a service until ``deregister`` or ``close``.

        Backends that outlive processes (file, ZooKeeper, Consul) give the place to the newer registration: it is the
        restarted process. The memory backend does so if ``metadata["allow_update"] == "true"``.

        Raises:
            AlreadyRegistered: The id is taken and cannot be replaced.
        """
        ...

    def deregister(self, service_id: str) -> None:
        """Deregister a service of this object; a service that has replaced it stays.

        Raises:
            NoSuchService: This object has not registered it.
        """
        ...

    def query(self, service_type: str) -> list[ServiceInfo]:
        """Return the services of a type, by index."""
        ...

    def watch(self, service_type: str, callback: Callback) -> Watch:
        """Report the services of a type to ``callback``: current ones as ``Added`` before return, then every change.

        Callbacks of one watch run one at a time, in a thread of the backend; they must be quick and wait for no other
        thread. The backend logs an exception of a callback, and the watch continues. Several changes between two reads
        may arrive as one event.
        """
        ...

    def heartbeat(self, service_id: str) -> None:
        """Send the heartbeat of a service; register it again if the store lost it.

        Raises:
            NoSuchService: This object has not registered it.
            AlreadyRegistered: Another process has taken its place, and keeps it.
        """
        ...

    def close(self) -> None:
        """Deregister own services, close watches and disconnect. Idempotent."""
        ...
