"""Find the addresses of this host: the one to register, and whether the host has IPv6 only.

Main types: ``OwnHost``, made by ``find_own_host``. Names are resolved through arguments, so tests need no network. No
packet is sent to any other host.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass

from monolith.agent.environment import AgentEnvironment
from monolith.core.errors import ConfigError
from monolith.discovery.address import join_address, split_address

__all__ = ["OwnHost", "check_servers_reachable", "find_own_host", "is_ipv6_only", "same_host"]

Resolve = Callable[[socket.AddressFamily], str | None]
"""Returns the address of this host's name in a family, or None."""


def _resolve_own_name(family: socket.AddressFamily) -> str | None:
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None, family=family)[0][4][0])
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class OwnHost:
    """Addresses of this host."""

    ipv4: str
    """IPv4 address, or ``0.0.0.0`` if the host has none."""
    ipv6: str
    """IPv6 address without brackets, or ``::`` if the host has none."""
    is_ipv6_only: bool

    @property
    def name(self) -> str:
        """The address by which other hosts and this one reach this host."""
        if self.is_ipv6_only and self.ipv6 != "::":
            return self.ipv6
        return self.ipv4 if self.ipv4 != "0.0.0.0" else "localhost"

    @property
    def listen_address(self) -> str:
        """The address that a server of this host listens on."""
        return "::" if self.is_ipv6_only else "0.0.0.0"

    def address(self, port: int) -> str:
        """Return ``host:port`` of IPv4."""
        return f"{self.ipv4}:{port}"

    def address_ipv6(self, port: int) -> str:
        """Return ``[host]:port`` of IPv6."""
        return f"[{self.ipv6}]:{port}"

    def reachable_address(self, port: int) -> str:
        """Return ``host:port`` by which other hosts reach a port of this host."""
        return join_address(self.name, port)


def is_ipv6_only(environment: AgentEnvironment, *, resolve: Resolve = _resolve_own_name) -> bool:
    """Return True if this host has no IPv4 address.

    If one of MY_HOST_IP, MY_POD_IP, MY_HOST_IPV6 is set, MY_HOST_IP (else MY_POD_IP) decides; else the host name does.
    """
    if environment.host.host_ip is None and environment.host.pod_ip is None and environment.host.host_ipv6 is None:
        return resolve(socket.AF_INET) is None
    ipv4 = environment.host.host_ip if environment.host.host_ip is not None else environment.host.pod_ip
    return not ipv4


def find_own_host(environment: AgentEnvironment, *, resolve: Resolve = _resolve_own_name) -> OwnHost:
    """Return the addresses of this host: MY_HOST_IP and MY_HOST_IPV6 as they stand, else the resolved host name."""
    return OwnHost(
        ipv4=environment.host.host_ip or resolve(socket.AF_INET) or "0.0.0.0",
        ipv6=(environment.host.host_ipv6 or resolve(socket.AF_INET6) or "::").strip("[]").partition("%")[0],
        is_ipv6_only=is_ipv6_only(environment, resolve=resolve),
    )


def check_servers_reachable(servers: str, host_is_ipv6_only: bool) -> None:
    """Refuse IPv4 addresses of ZooKeeper on a host that has IPv6 only.

    Raises:
        ConfigError: An address of ``servers`` is IPv4 and the host has none.
    """
    if not host_is_ipv6_only:
        return
    for server in servers.split(","):
        host = server.strip().rpartition(":")[0] or server.strip()
        try:
            address = ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            continue  # a name may resolve to IPv6
        if address.version == 4:
            raise ConfigError(
                f"zk_servers is {servers!r}, and this host is IPv6 only, but {server.strip()!r} is IPv4; "
                "give IPv6 addresses or host names"
            )


def same_host(address: str, other: str) -> bool:
    """Return True if two ``host:port`` texts name the same host."""
    return split_address(address)[0] == split_address(other)[0]
