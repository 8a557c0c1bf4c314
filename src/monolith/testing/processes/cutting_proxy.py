"""``CuttingProxy``: a TCP proxy that cuts, delays and resumes connections on request.

The proxy passes raw bytes, so it works for gRPC ports and for data planes.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from monolith.discovery.address import split_address

__all__ = ["CuttingProxy"]

_CHUNK = 1 << 16
_ACCEPT_RETRY_S = 0.05


class CuttingProxy:
    """Forwards connections to ``target`` unless a fault is set; also a context manager.

    Args:
        target: ``host:port`` of the server; it may start later.
        host: Interface to listen on. Another one of the loopback, such as 127.0.0.2, allows the server's own port.
        port: Port to listen on; 0 = any.
    """

    def __init__(self, target: str, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._target = split_address(target)
        self._changed = threading.Condition()
        self._is_cut = False
        self._is_closed = False
        self._flows = {"requests": True, "answers": True}
        self._pairs: list[_Pair] = []
        self._threads: list[threading.Thread] = []
        self._listening = socket.create_server((host, port))
        self.address = f"{host}:{self._listening.getsockname()[1]}"
        """Where clients connect to, ``host:port``."""
        self._acceptor = threading.Thread(target=self._accept, name=f"proxy {self.address}", daemon=True)
        self._acceptor.start()

    # --- faults ---

    def cut(self) -> None:
        """Reset all connections at both ends, and refuse new ones until ``resume``."""
        with self._changed:
            self._is_cut = True
            self._drop_all()

    def hang(self, *, requests: bool = True, answers: bool = True) -> None:
        """Delay all bytes, in one direction or both, until ``resume``. Connections stay open."""
        with self._changed:
            self._flows = {"requests": not requests, "answers": not answers}

    def drop(self) -> None:
        """Break the current connections and drop their delayed bytes. New connections pass."""
        with self._changed:
            self._drop_all()

    def resume(self) -> None:
        """Repair the proxy: delayed bytes arrive, and new connections are accepted."""
        with self._changed:
            self._is_cut = False
            self._flows = {"requests": True, "answers": True}
            self._changed.notify_all()

    def close(self) -> None:
        """Close all sockets. A second call does nothing."""
        with self._changed:
            self._is_closed = True
            self._drop_all()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the acceptor
        self._listening.close()
        self._acceptor.join()
        for thread in self._threads:
            thread.join()

    @property
    def connections(self) -> int:
        """Connections that pass through it now."""
        with self._changed:
            return len(self._pairs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- forwarding ---

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:  # closed; or a client that has left, or a process without free descriptors
                if self._is_closed:
                    return
                time.sleep(_ACCEPT_RETRY_S)
                continue
            with self._changed:
                self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._start(self._connect, client)

    def _start(self, what: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=what, args=arguments, name=f"proxy {self.address}", daemon=True)
        with self._changed:
            thread.start()
            self._threads.append(thread)

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target, timeout=10)
        except OSError:
            _reset(client)
            return
        server.settimeout(None)
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = _Pair(client, server)
        with self._changed:
            self._pairs.append(pair)
            if self._is_cut or self._is_closed:
                self._drop(pair)
                return
        self._start(self._forward, pair, client, server, "requests")
        self._forward(pair, server, client, "answers")

    def _forward(self, pair: _Pair, source: socket.socket, sink: socket.socket, direction: str) -> None:
        try:
            while part := source.recv(_CHUNK):
                if not self._may_pass(pair, direction):
                    return
                sink.sendall(part)
            if self._may_pass(pair, direction):
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            with self._changed:
                self._drop(pair)
        finally:
            self._close_pair(pair)

    def _may_pass(self, pair: _Pair, direction: str) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._flows[direction] or not pair.is_open)
            return pair.is_open

    def _close_pair(self, pair: _Pair) -> None:
        """Close the sockets: both directions have ended."""
        with self._changed:
            pair.ended += 1
            if pair.ended == 2:
                if pair in self._pairs:
                    self._pairs.remove(pair)
                pair.client.close()
                pair.server.close()

    def _drop_all(self) -> None:
        for pair in list(self._pairs):
            self._drop(pair)

    def _drop(self, pair: _Pair) -> None:
        if pair.is_open:
            pair.is_open = False
            self._pairs.remove(pair)
            for each in (pair.client, pair.server):
                _reset(each)
            self._changed.notify_all()


class _Pair:
    """The two sockets of a connection."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.is_open = True
        self.ended = 0


def _reset(each: socket.socket) -> None:
    """Reset the connection, which wakes threads that wait for it."""
    with contextlib.suppress(OSError):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RD)
    each.close()
