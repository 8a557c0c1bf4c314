"""Discovery by the MLP platform's environment: ``MLP_<ROLE>_NUM`` and one host and port for every process.

The environment is an argument, never ``os.environ``. Servers are listed once they accept connections, because the
platform starts the processes of a job in any order.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

from typing_extensions import override

from monolith.core.errors import ConfigError, NoSuchService
from monolith.discovery._static import StaticDiscovery, checked_service_type
from monolith.discovery.address import advertised_host, checked_host, checked_port
from monolith.discovery.base import ServiceInfo

__all__ = ["MlpDiscovery", "MlpEnvironment", "accepts_connections"]

_PARALLEL_PROBES = 10


def accepts_connections(host: str, port: int, timeout_s: float) -> bool:
    """Return whether a process listens on host and port."""
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except OSError:
        return False
    return True


class MlpEnvironment:
    """Values of the variables ``MLP_*`` and ``OMPI_COMM_WORLD_*``, without blanks and quotes around them.

    A worker under MPI (OMPI_COMM_WORLD_RANK is set) has its rank as index, and shares host and first port with the
    other ranks of its machine.

    Args:
        environment: The variables.

    Raises:
        ConfigError: A required variable is missing or invalid; the error names it.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.server_type = self._text("MLP_ROLE").lower()
        """Role of this process, such as ps, worker, dispatcher."""
        if not self.server_type:
            raise ConfigError("MLP_ROLE is not set; discovery by mlp needs the environment of the MLP platform")
        self._is_mpi = self.server_type == "worker" and bool(self._text("OMPI_COMM_WORLD_RANK"))
        self.index = self._number("OMPI_COMM_WORLD_RANK") if self._is_mpi else self._number("MLP_ROLE_INDEX", 0)
        """Number among the processes of its type."""

    def count(self, role: str) -> int:
        """Return the number of processes of a role."""
        if self._is_mpi and role == "worker":
            return self._number("OMPI_COMM_WORLD_SIZE", 1)
        return self._number(f"MLP_{role.upper()}_NUM", 0)

    def hosts(self, role: str, index: int) -> tuple[str, ...]:
        """Return the hosts of one process, the preferred first."""
        if self._is_mpi and role == "worker":
            index //= max(1, self._number("OMPI_COMM_WORLD_LOCAL_SIZE", 1))
        names = [f"MLP_{role.upper()}_{index}_{kind}" for kind in ("PRIMARY_HOST", "HOST")]
        hosts = tuple(self._host(name) for name in names if self._text(name))
        if not hosts:
            raise ConfigError(f"neither {names[0]} nor {names[1]} is set; discovery by mlp needs one of them")
        return hosts

    def port(self, role: str, index: int) -> int:
        """Return the port of one process."""
        if self._is_mpi and role == "worker":
            return self._port(f"MLP_{role.upper()}_0_PORT", index)
        return self._port(f"MLP_{role.upper()}_{index}_PORT", 0)

    @property
    def own_port(self) -> int:
        """Port that this process must listen on."""
        return self._port("MLP_PORT", self.index if self._is_mpi else 0)

    @property
    def own_hosts(self) -> tuple[str, ...]:
        """Hosts of this process, the preferred first."""
        primary = (self._host("MLP_HOST"),) if self._text("MLP_HOST") else ()
        listed = self.hosts(self.server_type, self.index) if self.count(self.server_type) > self.index else ()
        return (*primary, *listed) or (advertised_host(self._environment),)

    def _text(self, name: str) -> str:
        return self._environment.get(name, "").strip().strip("\"'").strip()

    def _number(self, name: str, default: int | None = None) -> int:
        text = self._text(name)
        if not text and default is not None:
            return default
        if not (text.isascii() and text.isdigit()):
            raise ConfigError(f"{name} is {text!r}; discovery by mlp needs a whole number there")
        return int(text)

    def _host(self, name: str) -> str:
        try:
            return checked_host(self._text(name))
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error

    def _port(self, name: str, offset: int) -> int:
        try:
            return checked_port(self._number(name) + offset)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error


class MlpDiscovery(StaticDiscovery):
    """The processes that the environment lists.

    Args:
        environment: The variables.
        probe: Returns whether a process listens on a host and port, within a timeout.
        probe_timeout_s: Timeout of ``probe``.
    """

    kind: ClassVar[str] = "mlp"
    watch_interval_s: ClassVar[float | None] = 2.0

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        probe: Callable[[str, int, float], bool] = accepts_connections,
        probe_timeout_s: float = 1.0,
    ) -> None:
        super().__init__()
        self._environment = MlpEnvironment(environment)
        self._probe = probe
        self._probe_timeout_s = probe_timeout_s
        self._hidden: set[str] = set()
        self._seen_listening: set[str] = set()

    @property
    def server_type(self) -> str:
        """Role of this process."""
        return self._environment.server_type

    @property
    def index(self) -> int:
        """Number among the processes of its type."""
        return self._environment.index

    @property
    def host(self) -> str:
        """Host under which others find this process."""
        return self._environment.own_hosts[0]

    @property
    def port(self) -> int:
        """Port that this process must listen on."""
        return self._environment.own_port

    def register(self, service: ServiceInfo) -> None:
        """Check that a service matches role, host and port of this process in the environment.

        Raises:
            ConfigError: Role, index, host or port differ.
        """
        self._check_open()
        expected = (self.server_type, self.index)
        if (service.service_type, service.index) != expected:
            raise ConfigError(
                f"{service.service_type} {service.index} cannot be registered: "
                f"by MLP_ROLE and its index this process is {expected[0]} {expected[1]}"
            )
        if service.host not in self._environment.own_hosts:
            raise ConfigError(
                f"host of {service.id} is {service.host!r}, expected by the environment of the MLP platform: "
                f"{' or '.join(self._environment.own_hosts)}"
            )
        if service.port != self.port:
            raise ConfigError(f"port of {service.id} is {service.port}, expected MLP_PORT {self.port}")
        with self._lock:
            self._hidden.discard(service.id)

    def deregister(self, service_id: str) -> None:
        """Hide a service from queries of this process.

        Raises:
            NoSuchService: The environment does not list it.
        """
        self._check_open()
        self._check_listed(service_id)
        with self._lock:
            self._hidden.add(service_id)

    def heartbeat(self, service_id: str) -> None:
        """Check that the service is listed; static services need no heartbeat."""
        self._check_open()
        self._check_listed(service_id)

    @override
    def query(self, service_type: str) -> list[ServiceInfo]:
        """Return the services of a type: workers as listed, and those servers that have accepted a connection."""
        self._check_open()
        listed = self._listed(checked_service_type(service_type))
        with self._lock:
            services = [one for one in listed if one.id not in self._hidden]
        if service_type != "ps":
            return services
        self._probe_all([one for one in services if one.address not in self._seen_listening])
        return [one for one in services if one.address in self._seen_listening]

    def _probe_all(self, services: list[ServiceInfo]) -> None:
        if not services:
            return
        with ThreadPoolExecutor(min(_PARALLEL_PROBES, len(services))) as pool:
            answers = pool.map(lambda one: self._probe(one.host, one.port, self._probe_timeout_s), services)
        with self._lock:
            self._seen_listening.update(one.address for one, answer in zip(services, answers, strict=True) if answer)

    def _listed(self, service_type: str) -> list[ServiceInfo]:
        environment = self._environment
        return [
            ServiceInfo(
                service_type=service_type,
                index=index,
                host=environment.hosts(service_type, index)[0],
                port=environment.port(service_type, index),
            )
            for index in range(environment.count(service_type))
        ]

    def _check_listed(self, service_id: str) -> None:
        ids = [one.id for service_type in ("ps", "worker") for one in self._listed(service_type)]
        if service_id not in ids:
            raise NoSuchService(f"Service not found: {service_id}; the environment lists: {', '.join(ids) or 'none'}")
