"""The native HTTP server with a handler in Python, in the form of ``HttpServer``: both pass one suite of the wire."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from monolith.serving.api.http_server import HttpLimits
from monolith.serving.api.native_front import NativeFront
from monolith.serving.config import ServingConfig
from monolith.telemetry.text import Samples

__all__ = ["NativeHttp"]


class NativeHttp:
    """Serves HTTP on a free port.

    Args:
        handler: Answers requests.
        limits: Bounds of clients.
    """

    def __init__(self, handler: Any, limits: HttpLimits) -> None:
        config = ServingConfig(
            port=None,
            rest_port=0,
            native="on",
            max_message_bytes=limits.max_body,
            rest_max_pending_bytes=limits.max_pending,
            max_calls=limits.max_connections,
            idle_timeout_s=limits.idle_s,
            read_timeout_s=limits.read_s,
            request_timeout_s=limits.answer_s,
        )
        self._front = NativeFront(config)
        self.port, _ = self._front.start(handler, {}, None)

    @property
    def connections(self) -> int:
        """Number of open connections."""
        assert self._front._server is not None
        return self._front._server.connections

    @property
    def pending_bytes(self) -> int:
        """Bytes of bodies whose requests are not answered yet."""
        assert self._front._server is not None
        return self._front._server.pending_bytes

    def samples(self) -> Iterable[Samples]:
        """Return the metrics of the native servers."""
        return self._front.samples()

    def close(self, drain_s: float = 0.0) -> None:
        """Stop the server."""
        self._front.close_ports(drain_s)
        self._front.close(0.0)
