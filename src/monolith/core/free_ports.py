"""Free ports for processes that start later. Neither outgoing connections nor other callers take them in between.

Main function: ``free_port``. The system gives outgoing connections ports of one range; the ports are below it. A bound
socket reserves each port: another ``free_port`` of any process finds it taken, but a server that sets SO_REUSEADDR,
as servers do, may listen on it. This process keeps the newest 256 reservations until it ends.
"""

from __future__ import annotations

import os
import random
import socket
import threading
from collections import deque
from pathlib import Path

__all__ = ["free_port", "free_ports"]

_LOWEST = 15_000
_ATTEMPTS = 100
_MOST_RESERVED = 256
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")

_reserved: deque[int] = deque()
"""Descriptors of bound sockets, the oldest first."""
_lock = threading.Lock()


def free_port(host: str = "127.0.0.1") -> int:
    """Reserve a port without a listener and return it. An empty host is any."""
    generator = random.SystemRandom()
    end = _outgoing_begin()
    for _ in range(_ATTEMPTS if end > _LOWEST else 0):
        try:
            return _reserve(host, generator.randrange(_LOWEST, end))
        except OSError:
            continue
    return _reserve(host, 0)


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Reserve different ports without listeners and return them."""
    return [free_port(host) for _ in range(count)]


def _outgoing_begin() -> int:
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _reserve(host: str, port: int) -> int:
    try:
        bound = _bind(socket.AF_INET, host, port)
    except OSError:
        if host:
            raise
        bound = _bind(socket.AF_INET6, "::", port)
    port = int(bound.getsockname()[1])
    # Without the option at the bind, the port was free. With it from now on, a server may listen beside this socket.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if not _may_listen_beside(bound):
        bound.close()  # this system looks at the option of the bind only
        return port
    with _lock:
        _reserved.append(bound.detach())
        if len(_reserved) > _MOST_RESERVED:
            os.close(_reserved.popleft())
    return port


def _bind(family: socket.AddressFamily, host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if is_shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def _may_listen_beside(bound: socket.socket) -> bool:
    try:
        _bind(bound.family, *bound.getsockname()[:2], is_shared=True).close()
    except OSError:
        return False
    return True
