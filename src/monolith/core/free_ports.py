"""Free ports for processes that start later. Outgoing connections of other processes do not take them in between.

The system gives outgoing connections ports of one range. A port below that range stays free until a server
listens on it.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path

__all__ = ["free_port", "free_ports", "reserve_port"]

_LOWEST = 15_000
_ATTEMPTS = 100
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port without a listener."""
    return free_ports(1, host)[0]


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return different ports without listeners."""
    with ExitStack() as probes:
        return [reserve_port(probes, host) for _ in range(count)]


def reserve_port(probes: ExitStack, host: str = "127.0.0.1") -> int:
    """Return a port without a listener; no other process gets it until ``probes`` closes. An empty host is any."""
    generator = random.SystemRandom()
    end = _outgoing_begin()
    for _ in range(_ATTEMPTS if end > _LOWEST else 0):
        port = generator.randrange(_LOWEST, end)
        try:
            _bind(probes, host, port)
        except OSError:
            continue
        return port
    return _bind(probes, host, 0)


def _outgoing_begin() -> int:
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _bind(probes: ExitStack, host: str, port: int) -> int:
    try:
        probe = probes.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        probe.bind((host, port))
    except OSError:
        if host:
            raise
        probe = probes.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_STREAM))
        probe.bind(("::", port))
    return int(probe.getsockname()[1])
