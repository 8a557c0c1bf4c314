"""``BoundedHttpServer``: HTTP for pages beside the work, where a client can hold little.

At most ``connections`` clients are served at a time, each for at most ``timeout_s`` seconds in all.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from typing_extensions import override

__all__ = ["BoundedHttpServer"]

logger = logging.getLogger(__name__)

_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class BoundedHttpServer(HTTPServer):
    """Accepts in one thread, answers in a pool, and closes connections past their deadline.

    Args:
        address: Host and port to listen on.
        handler: Answers one connection.
        connections: Limit of concurrent connections, and number of threads; one more is closed with 503.
        timeout_s: Limit of one connection's life.
        name: Name of the threads, and of the server in the log.
    """

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        connections: int,
        timeout_s: float,
        *,
        name: str,
    ) -> None:
        self._name = name
        self._limit = connections
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._deadlines: dict[socket.socket, float] = {}
        self._pool = ThreadPoolExecutor(connections, thread_name_prefix=name)
        super().__init__(address, handler)  # closes itself if it cannot listen

    @override
    def server_bind(self) -> None:
        # Not HTTPServer's, which asks DNS for the name of the machine.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.socket.getsockname()[:2]

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            is_accepted = len(self._deadlines) < self._limit
            if is_accepted:
                self._deadlines[request] = time.monotonic() + self._timeout_s
        if is_accepted:
            self._pool.submit(self._serve, request, client_address)
            return
        request.setblocking(False)
        with contextlib.suppress(OSError):
            request.send(_BUSY)
        self.shutdown_request(request)

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        try:
            request.settimeout(self._timeout_s)
            self.finish_request(request, client_address)
        except OSError:
            pass  # the client left, or its deadline passed
        except Exception:
            logger.exception("%s connection failed", self._name)
        finally:
            with self._lock:
                del self._deadlines[request]
            self.shutdown_request(request)

    @override
    def service_actions(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            for request, deadline_s in self._deadlines.items():
                if now_s >= deadline_s:
                    _hang_up(request)

    @override
    def server_close(self) -> None:
        super().server_close()
        with self._lock:
            for request in self._deadlines:
                _hang_up(request)
        self._pool.shutdown()


def _hang_up(request: socket.socket) -> None:
    """End both directions; the thread that reads or writes this socket gets an error."""
    with contextlib.suppress(OSError):  # closed by the client
        request.shutdown(socket.SHUT_RDWR)
