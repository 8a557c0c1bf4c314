"""``MetricsPage``: /metrics and /healthz over plain HTTP, from two callables.

A client holds little: at most ``connections`` clients are served at a time, each for at most ``timeout_s`` seconds in
all. One more connection is closed with 503. Requests are answered in a fixed number of threads.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import TracebackType
from typing import Any, Self

from typing_extensions import override

from monolith.core.errors import ClusterError
from monolith.telemetry.text import CONTENT_TYPE

__all__ = ["Health", "MetricsPage"]

logger = logging.getLogger(__name__)

Health = Callable[[], tuple[bool, str]]
"""Returns whether the process is healthy, and one line of text."""

_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def _always_healthy() -> tuple[bool, str]:
    return True, "OK"


class MetricsPage:
    r"""Serves /metrics and /healthz until ``close``.

    >>> from urllib.request import urlopen
    >>> with MetricsPage(lambda: "up 1\n", host="127.0.0.1") as page:
    ...     urlopen(f"http://127.0.0.1:{page.port}/metrics", timeout=10).read()
    b'up 1\n'

    Args:
        text: Returns the metrics in the text form of Prometheus; called in threads of the page.
        health: Returns the health of the process; None = healthy while the page answers.
        host: Interface to listen on.
        port: Port; 0 = any free port.
        connections: Limit of concurrent connections, and number of threads.
        timeout_s: Limit of one connection's life.

    Raises:
        ClusterError: The port is taken, or the machine lacks the interface.
    """

    def __init__(
        self,
        text: Callable[[], str],
        health: Health | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        connections: int = 8,
        timeout_s: float = 10.0,
    ) -> None:
        try:
            self._server = _Server((host, port), _handler(text, health or _always_healthy), connections, timeout_s)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ClusterError(f"metrics cannot listen on {host}:{port} ({reason}); give a free port") from error
        self.port: int = self._server.server_address[1]
        """Port that the page listens on."""
        self._thread: threading.Thread | None = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving. Idempotent."""
        if self._thread is None:
            return
        self._server.shutdown()
        self._thread.join()
        self._thread = None
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _handler(text: Callable[[], str], health: Health) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                status, body = self._answer(self.path.partition("?")[0])
            except Exception:
                logger.exception("metrics failed path=%s", self.path)
                status, body = 500, "metrics failed; see the log of the process\n"
            payload = body.encode()
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def _answer(self, path: str) -> tuple[int, str]:
            if path == "/metrics":
                return 200, text()
            if path == "/healthz":
                is_healthy, line = health()
                return 200 if is_healthy else 503, f"{line}\n"
            return 404, "paths are /metrics and /healthz\n"

        @override
        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: one line per scrape floods the log."""

    return Handler


class _Server(HTTPServer):
    """Accepts in one thread, answers in a pool, and closes connections past their deadline."""

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], connections: int, timeout_s: float
    ) -> None:
        self._limit = connections
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._deadlines: dict[socket.socket, float] = {}
        self._pool = ThreadPoolExecutor(connections, thread_name_prefix="metrics")
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
            logger.exception("metrics connection failed")
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
