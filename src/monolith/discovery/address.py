"""Addresses as text: ``host:port``, with brackets around IPv6; and the host under which others reach this machine.

Opens no connection. Resolves the name of the machine only if the environment does not name its host.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Mapping

from monolith.core.errors import ConfigError

__all__ = ["advertised_host", "checked_host", "checked_port", "is_whole", "join_address", "split_address"]


def is_whole(value: object) -> bool:
    """Return whether an unchecked value is a whole number of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def checked_host(host: str) -> str:
    """Return a host name or an IP address without brackets, or raise ``ConfigError``.

    >>> checked_host("[::1]"), checked_host("ps-0.example")
    ('::1', 'ps-0.example')
    """
    if not _is_text(host):
        raise ConfigError(f"host is {host!r}; give a host name or an IP address")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if ":" in bare or bare != host:
        try:
            ipaddress.IPv6Address(bare)
        except ValueError as error:
            raise ConfigError(f"host is {host!r}, expected an IPv6 address ({error}); give one like ::1") from error
        return bare
    if any(letter.isspace() or not letter.isprintable() or letter in "/,@[]?#" for letter in bare):
        raise ConfigError(f"host is {host!r}; give a host name or an IP address, without blanks, port or scheme")
    try:
        bare.encode("idna")  # no connection could resolve it
    except UnicodeError as error:
        raise ConfigError(
            f"host is {host!r}, expected 1 to 63 letters between two dots ({error}); check the name"
        ) from error
    return bare


def checked_port(port: int) -> int:
    """Return a port from 0 to 65535, or raise ``ConfigError``."""
    if not is_whole(port) or port > 65535:
        raise ConfigError(f"port is {port!r}; give a whole number from 0 to 65535")
    return port


def join_address(host: str, port: int) -> str:
    """Return ``host:port``.

    >>> join_address("10.0.0.7", 80), join_address("::1", 80)
    ('10.0.0.7:80', '[::1]:80')
    """
    host = checked_host(host)
    return f"[{host}]:{checked_port(port)}" if ":" in host else f"{host}:{checked_port(port)}"


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``.

    >>> split_address("10.0.0.7:80"), split_address("[::1]:80")
    (('10.0.0.7', 80), ('::1', 80))

    Raises:
        ConfigError: The text is not an address.
    """
    host, colon, port = address.rpartition(":") if _is_text(address) else ("", "", "")
    if not colon or not (port.isascii() and port.isdigit()) or len(port) > 5:
        raise ConfigError(f"address is {address!r}; give host:port, such as 10.0.0.7:2222 or [::1]:2222")
    if ":" in host and not host.startswith("["):
        raise ConfigError(f"address is {address!r}; write an IPv6 address in brackets, such as [::1]:2222")
    try:
        return checked_host(host), checked_port(int(port))
    except ConfigError as error:
        raise ConfigError(f"address is {address!r}: {error}") from error


def _first_address(name: str, family: socket.AddressFamily) -> str:
    return str(socket.getaddrinfo(name, None, family=family)[0][4][0])


def advertised_host(
    environment: Mapping[str, str],
    *,
    host_name: Callable[[], str] = socket.gethostname,
    resolve: Callable[[str, socket.AddressFamily], str] = _first_address,
) -> str:
    """Return the host by which other machines reach this one.

    The first of CLOUDNATIVE_INET_ADDR (a list; its first entry counts) and YARN_INET_ADDR that is set, else the
    address of the machine's name. It is an IPv6 address only if MY_HOST_IPV6 is set, and neither MY_HOST_IP nor
    MY_POD_IP is.

    Raises:
        ConfigError: The variables are unset, and the machine's name cannot be resolved.
    """
    for variable in ("CLOUDNATIVE_INET_ADDR", "YARN_INET_ADDR"):
        host = environment.get(variable, "").split(",")[0].strip()
        if host:
            try:
                return checked_host(host)
            except ConfigError as error:
                raise ConfigError(f"{variable}: {error}") from error
    has_ipv4 = any(environment.get(variable) for variable in ("MY_HOST_IP", "MY_POD_IP"))
    is_ipv6_only = bool(environment.get("MY_HOST_IPV6")) and not has_ipv4
    name = host_name()
    try:
        return resolve(name, socket.AF_INET6 if is_ipv6_only else socket.AF_UNSPEC)
    except OSError as error:
        raise ConfigError(
            f"this machine's name {name!r} cannot be resolved ({error}); set CLOUDNATIVE_INET_ADDR to its address"
        ) from error
