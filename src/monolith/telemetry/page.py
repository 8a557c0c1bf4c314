"""``MetricsPage``: /metrics and /healthz over plain HTTP, from two callables.

A client holds little: at most ``connections`` clients are served at a time, each for at most ``timeout_s`` seconds in
all. One more connection is closed with 503. Requests are answered in a fixed number of threads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Self

from typing_extensions import override

from monolith.core.errors import ClusterError
from monolith.telemetry.http_server import BoundedHttpServer
from monolith.telemetry.text import CONTENT_TYPE

__all__ = ["Health", "MetricsPage"]

logger = logging.getLogger(__name__)

Health = Callable[[], tuple[bool, str]]
"""Returns whether the process is healthy, and one line of text."""


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
            self._server = BoundedHttpServer(
                (host, port), _handler(text, health or _always_healthy), connections, timeout_s, name="metrics"
            )
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
