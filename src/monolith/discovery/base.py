"""What discovery is: services that are registered, found and watched. How a backend keeps them, nothing here knows."""

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
    """How a service says it is."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    STARTING = "starting"
    STOPPING = "stopping"


def checked_name(field_name: str, value: str) -> str:
    """Return a name that every backend can keep, or raise ``ConfigError``."""
    if not _NAME.match(str(value)):
        raise ConfigError(
            f"{field_name} is {value!r}; give letters, digits, '_', '-' and '.', not beginning with '.', without blanks"
        )
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceInfo:
    """One process that others may find.

    The place of a service is its type and its index. Backends that keep no more than an address in a place (file,
    ZooKeeper, Consul) give back the id ``<type>-<index>``, and no metadata, whatever was registered.
    """

    service_type: str
    """What it is: ps, worker, ..."""
    index: int | None = None
    """Its number among those of its type; None where it has none, or one that is no number."""
    host: str
    """A name or an IP address, without brackets."""
    port: int
    """Where it listens; 0 = nowhere."""
    id: str = ""
    """Its name among all services; ``<type>-<index>`` when not given."""
    name: str = ""
    """What people call it; the id when not given."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """More to tell. ``allow_update="true"`` lets a registration replace an older one of the same id."""
    health: Health = Health.UNKNOWN
    """How it said it is when it registered."""

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
        """Whether this registration may take the place of an older one where the backend asks."""
        return self.metadata.get("allow_update") == "true"


def in_order(services: Iterable[ServiceInfo]) -> list[ServiceInfo]:
    """Return services by index; those without one come last, by address."""
    return sorted(services, key=lambda one: (one.index is None, one.index or 0, one.address, one.id))


@dataclass(frozen=True, slots=True)
class Added:
    """A service is there that was not."""

    service: ServiceInfo


@dataclass(frozen=True, slots=True)
class Updated:
    """A service has moved, or says something else of itself."""

    service: ServiceInfo


@dataclass(frozen=True, slots=True)
class Removed:
    """A service is gone; this is how it was last seen."""

    service: ServiceInfo


Event: TypeAlias = Added | Updated | Removed
Callback: TypeAlias = Callable[[Event], None]


@runtime_checkable
class Watch(Protocol):
    """A running watch; also a context manager that ends it."""

    def close(self) -> None:
        """Tell no more; a second call does nothing. After return no further callback begins."""
        ...

    def __enter__(self) -> Watch: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class Discovery(Protocol):
    """How processes of a job find each other. Safe to share between threads.

    Every call but ``close`` raises a ``ClusterError`` before ``connect`` and after ``close``. A failure of the store
    behind it is a ``ClusterError`` too, whose ``retryable`` says whether the same call may succeed later.
    """

    @property
    def kind(self) -> str:
        """Which backend this is: memory, file, tf_config, mlp, zookeeper, consul, or local (none)."""
        ...

    def connect(self) -> None:
        """Reach the store; a second call does nothing.

        Raises:
            ConnectionFailed: It cannot be reached.
        """
        ...

    def register(self, service: ServiceInfo) -> None:
        """Make a service known until it is deregistered, or this object is closed.

        Backends that outlive processes (file, ZooKeeper, Consul) give the place to the newcomer: it is the restarted
        process. The memory backend does so where ``metadata["allow_update"] == "true"``.

        Raises:
            AlreadyRegistered: The id is taken, and may not be replaced.
        """
        ...

    def deregister(self, service_id: str) -> None:
        """Withdraw a service that this object registered; where another has taken its place, the other one stays.

        Raises:
            NoSuchService: This object has not registered it.
        """
        ...

    def query(self, service_type: str) -> list[ServiceInfo]:
        """Return the services of a type, by index."""
        ...

    def watch(self, service_type: str, callback: Callback) -> Watch:
        """Tell of services of a type: those that are there as ``Added``, before return, then every change.

        Callbacks of one watch come one at a time, from a thread of the backend; they should be quick and wait for no
        other thread. An exception in one is logged, and the watch goes on. Changes that follow each other faster
        than the backend looks may be told as one.
        """
        ...

    def heartbeat(self, service_id: str) -> None:
        """Say that a service is alive; a registration that the store has lost is put back.

        Raises:
            NoSuchService: This object has not registered it.
            AlreadyRegistered: Another process has taken its place; it is left there.
        """
        ...

    def close(self) -> None:
        """Withdraw what this object registered, end its watches and leave the store; a second call does nothing."""
        ...
