"""Client of a Consul agent's HTTP API, in two dialects.

``ConsulAgent`` is standard Consul. ``LookupAgent`` is the agent that the original was written for: it lists services
under ``/v1/lookup/name``.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote, urlsplit

from typing_extensions import override

from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ClusterError, ConfigError, ConnectionFailed, RpcTimeout
from monolith.core.retry import RetryPolicy, retry
from monolith.discovery.address import checked_host, checked_port, join_address
from monolith.discovery.base import ServiceInfo

__all__ = ["ConsulAgent", "ConsulEndpoint", "ConsulEntry", "LookupAgent", "consul_agent"]

T = TypeVar("T")

_LOOKUP_PORT = 2280
_LOOKUP_SOCKET = "/opt/tmp/sock/consul.sock"
_STANDARD_PORT = 8500
# Socket errors: five tries, with pauses drawn evenly from 0 to 5 s.
_RETRY = RetryPolicy(attempts=5, initial_backoff_s=5.0, max_backoff_s=5.0, multiplier=1.0, jitter=1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsulEndpoint:
    """Address of an agent: host and port, or a Unix socket."""

    host: str = ""
    port: int = 0
    unix_path: str = ""
    is_tls: bool = False

    @classmethod
    def parse(cls, address: str) -> ConsulEndpoint:
        """Read ``host:port``, ``http(s)://host:port`` or ``unix:///path``; the default port is 8500.

        Raises:
            ConfigError: The text is not an address.
        """
        text = address.strip() or f"http://127.0.0.1:{_STANDARD_PORT}"
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            if parts.scheme == "unix":
                return cls(unix_path=parts.path)
            if parts.scheme not in ("http", "https") or parts.path not in ("", "/") or parts.query or parts.username:
                raise ConfigError("give host:port, http://host:port, https://host:port or unix:///path")
            return cls(
                host=checked_host(parts.hostname or ""),
                port=checked_port(_STANDARD_PORT if parts.port is None else parts.port),
                is_tls=parts.scheme == "https",
            )
        except ValueError as error:
            raise ConfigError(f"Consul connect invalid address: {address!r}: {error}") from error

    def __str__(self) -> str:
        return f"unix:{self.unix_path}" if self.unix_path else join_address(self.host, self.port)

    def open(self, timeout_s: float) -> http.client.HTTPConnection:
        """Return a connection that opens with its first request."""
        if self.unix_path:
            return _UnixConnection(self.unix_path, timeout_s)
        if self.is_tls:
            return http.client.HTTPSConnection(
                self.host, self.port, timeout=timeout_s, context=ssl.create_default_context()
            )
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsulEntry:
    """One instance of a service, as an agent lists it."""

    service_id: str
    host: str
    port: int
    tags: Mapping[str, str]
    node: str = ""
    """Machine of its agent, if the dialect names it."""

    @property
    def address(self) -> str:
        """``host:port``."""
        return join_address(self.host, self.port)


class ConsulAgent:
    """Consul's own HTTP API.

    Args:
        endpoint: Address of the agent.
        token: ACL token (CONSUL_HTTP_TOKEN).
        timeout_s: Timeout of one request.
        retries: Retries of requests that reached no agent.
        clock: Measures the pauses between retries.
    """

    dialect: ClassVar[str] = "consul"
    pass_method: ClassVar[str] = "PUT"

    def __init__(
        self,
        endpoint: ConsulEndpoint,
        *,
        token: str | None = None,
        timeout_s: float = 15.0,
        retries: RetryPolicy = _RETRY,
        clock: Clock | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._headers = {"X-Consul-Token": token} if token else {}
        self._timeout_s = timeout_s
        self._retries = retries
        self._clock = clock or SystemClock()

    def service_id(self, name: str, service: ServiceInfo) -> str:
        """Return the agent's id of a service: its place, because several hosts may share one agent."""
        return f"{name}-{service.service_type}-{service.index}"

    def register(self, name: str, service: ServiceInfo, ttl_s: int) -> None:
        """Register a service; the agent lists it once its check has passed."""
        self._done("register", "PUT", "/v1/agent/service/register", self._registration(name, service, ttl_s))

    def deregister(self, entry_id: str, node: str = "") -> None:
        """Deregister an instance from this agent; with ``node``, also from the catalog of all agents."""
        status, text = self._ask("deregister", "PUT", f"/v1/agent/service/deregister/{quote(entry_id, safe='')}")
        # An agent without this instance answers with an error, which is fine here.
        if status not in (200, 404) and not (status == 500 and "Unknown service" in text):
            raise self._failure("deregister", status, text)
        if node:
            body = {"Node": node, "ServiceID": entry_id}
            self._done("deregister", "PUT", "/v1/catalog/deregister", body)

    def pass_check(self, entry_id: str) -> bool:
        """Pass the check of an instance; return False if the agent does not know it."""
        path = f"/v1/agent/check/pass/{quote(f'service:{entry_id}', safe=':')}"
        status, text = self._ask("heartbeat", self.pass_method, path)
        if status == 200:
            return True
        if status == 404 or "does not have associated TTL" in text or "Unknown check" in text:
            return False
        raise self._failure("heartbeat", status, text)

    def holder(self, entry_id: str) -> str | None:
        """Return the address of the agent's instance with this id, or None."""
        status, text = self._ask("query", "GET", f"/v1/agent/service/{quote(entry_id, safe='')}")
        if status == 404:
            return None
        if status != 200:
            raise self._failure("query", status, text)
        return self._read("query", text, lambda entry: join_address(str(entry["Address"]), int(entry["Port"])))

    def is_held(self, entry_id: str, address: str) -> bool:
        """Return whether the agent's instance with this id has this address."""
        return self.holder(entry_id) == address

    def lookup(self, name: str) -> list[ConsulEntry]:
        """Return the instances of a service whose checks pass."""
        status, text = self._ask("query", "GET", f"/v1/health/service/{quote(name, safe='')}?passing=true")
        if status != 200:
            raise self._failure("query", status, text)
        return self._read("query", text, lambda entries: [_health_entry(one) for one in entries])

    def _registration(self, name: str, service: ServiceInfo, ttl_s: int) -> dict[str, Any]:
        return {
            "ID": self.service_id(name, service),
            "Name": name,
            "Address": service.host,
            "Port": service.port,
            "Tags": _tags(service),
            # Consul removes the instance of a dead process some time after it stops listing it.
            "Check": {"TTL": f"{ttl_s}s", "DeregisterCriticalServiceAfter": f"{10 * ttl_s}s"},
        }

    def _done(self, operation: str, method: str, path: str, body: Mapping[str, Any] | None = None) -> None:
        status, text = self._ask(operation, method, path, body)
        if status != 200:
            raise self._failure(operation, status, text)

    def _ask(self, operation: str, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, str]:
        return retry(self._retries, lambda: self._ask_once(operation, method, path, body), clock=self._clock)

    def _ask_once(self, operation: str, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, str]:
        connection = self.endpoint.open(self._timeout_s)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), self._headers)
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        except TimeoutError as error:
            raise RpcTimeout(
                f"Operation timed out: Consul {operation} at {self.endpoint} after {self._timeout_s:g} s"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionFailed(f"Connection failed: Consul {operation} at {self.endpoint}: {error!r}") from error
        finally:
            connection.close()

    def _failure(self, operation: str, status: int, text: str) -> ClusterError:
        remedy = "; set CONSUL_HTTP_TOKEN to a token that may" if status == 403 else ""
        return ClusterError(
            f"Consul {operation} failed: {self.endpoint} answered {status} {text.strip()[:200]!r}{remedy}",
            retryable=status >= 500,
        )

    def _read(self, operation: str, text: str, build: Callable[[Any], T]) -> T:
        """Return the result of ``build`` for the JSON of a response."""
        try:
            return build(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ClusterError(
                f"Consul {operation} failed: {self.endpoint} answered {text[:80]!r}, "
                f"expected JSON of a Consul agent ({error!r}); check the address"
            ) from error


class LookupAgent(ConsulAgent):
    """The agent of the original: ids by port, checks passed by GET, and lookup by name."""

    dialect: ClassVar[str] = "lookup"
    pass_method: ClassVar[str] = "GET"

    @override
    def service_id(self, name: str, service: ServiceInfo) -> str:
        """Return ``<name>-<port>``: the agent serves one host."""
        return f"{name}-{service.port}"

    @override
    def holder(self, entry_id: str) -> str | None:
        """Return None: the process that listens on the port holds it."""
        del entry_id
        return None

    @override
    def is_held(self, entry_id: str, address: str) -> bool:
        """Return True: see ``holder``."""
        del entry_id, address
        return True

    @override
    def lookup(self, name: str) -> list[ConsulEntry]:
        """Return the instances of a service; empty if the agent answers with an error."""
        path = f"/v1/lookup/name?name={quote(name, safe='')}&addr-family=dual-stack"
        status, text = self._ask("query", "GET", path)
        if status != 200:
            return []
        return self._read("query", text, lambda entries: [_lookup_entry(name, one) for one in entries])

    @override
    def _registration(self, name: str, service: ServiceInfo, ttl_s: int) -> dict[str, Any]:
        return {
            "id": self.service_id(name, service),
            "name": name,
            "port": service.port,
            "check": {"ttl": f"{ttl_s}s"},
            "tags": _tags(service),
        }


def _tags(service: ServiceInfo) -> list[str]:
    return [f"index:{service.index}", f"name:{service.service_type}", f"ip:{service.host}"]


def _health_entry(one: Mapping[str, Any]) -> ConsulEntry:
    service, node = one["Service"], one["Node"]
    pairs = (str(tag).partition(":") for tag in service.get("Tags") or ())
    return ConsulEntry(
        service_id=str(service["ID"]),
        host=str(service.get("Address") or node["Address"]),
        port=int(service["Port"]),
        tags={key: value for key, _, value in pairs},
        node=str(node["Node"]),
    )


def _lookup_entry(name: str, one: Mapping[str, Any]) -> ConsulEntry:
    tags = {str(key): str(value) for key, value in (one.get("Tags") or {}).items()}
    port = int(one["Port"])
    return ConsulEntry(service_id=f"{name}-{port}", host=tags.get("ip") or str(one["Host"]), port=port, tags=tags)


def consul_agent(
    address: str | None,
    environment: Mapping[str, str],
    *,
    socket_exists: Callable[[str], bool] = lambda path: Path(path).is_socket(),
    clock: Clock | None = None,
) -> ConsulAgent:
    """Return the agent that an address, or else the environment, names.

    An address, or CONSUL_HTTP_ADDR, names an agent of Consul. Otherwise the agent is the original's: at
    CONSUL_HTTP_HOST, TCE_HOST_IP, the socket /opt/tmp/sock/consul.sock or 127.0.0.1, whichever comes first, and port
    CONSUL_HTTP_PORT or 2280.

    Raises:
        ConfigError: An address is wrong.
    """
    address = address or environment.get("CONSUL_HTTP_ADDR")
    if address:
        endpoint = ConsulEndpoint.parse(address)
        return ConsulAgent(endpoint, token=environment.get("CONSUL_HTTP_TOKEN") or None, clock=clock)
    host = environment.get("CONSUL_HTTP_HOST") or environment.get("TCE_HOST_IP")
    if not host and socket_exists(_LOOKUP_SOCKET):
        return LookupAgent(ConsulEndpoint(unix_path=_LOOKUP_SOCKET), clock=clock)
    port = environment.get("CONSUL_HTTP_PORT") or str(_LOOKUP_PORT)
    try:
        if not port.isdigit():
            raise ConfigError(f"port is {port!r}; give a whole number from 0 to 65535")
        endpoint = ConsulEndpoint(host=checked_host(host or "127.0.0.1"), port=checked_port(int(port)))
    except ConfigError as error:
        raise ConfigError(f"Consul connect invalid address: {error}; see CONSUL_HTTP_HOST, CONSUL_HTTP_PORT") from error
    return LookupAgent(endpoint, clock=clock)
