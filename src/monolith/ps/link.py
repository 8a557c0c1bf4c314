"""One server as its clients see it: a channel, its calls, and what it said when it was connected to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from monolith.core.errors import ConfigError
from monolith.ps import messages
from monolith.rpc import grpc
from monolith.rpc.security import Security

__all__ = ["MAX_MESSAGE_BYTES", "Greeting", "ServerLink"]

MAX_MESSAGE_BYTES = 256 << 20
"""Largest request or answer; the servers' default."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a server says of itself."""

    instance: int
    """Another number after every start."""
    index: int
    shards: int
    data_plane: tuple[str, ...]
    token: bytes
    rows: int

    @classmethod
    def read(cls, answer: messages.ConnectResponse) -> Greeting:
        """Return what a server answered."""
        return cls(
            answer.instance,
            answer.index,
            answer.shards,
            tuple(answer.data_plane),
            answer.data_plane_token,
            answer.rows,
        )


class ServerLink:
    """Calls one server. Safe to use from several threads; connects when it is first used.

    Args:
        address: ``host:port``, with or without ``http://``.
        security: TLS and token.
        max_message_bytes: Largest request or answer.
    """

    def __init__(
        self, address: str, security: Security | None = None, max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        self.address = address.removeprefix("http://").removeprefix("https://").rstrip("/")
        host, colon, port = self.address.rpartition(":")
        if not (host and colon and port.isdecimal()):
            raise ConfigError(f"address of a parameter server is {address!r}; give host:port")
        self._channel = grpc.open_channel(self.address, security or Security(), max_message_bytes)
        self._calls = {
            verb: self._channel.unary_unary(
                f"/{service}/{verb}",
                request_serializer=request.SerializeToString,
                response_deserializer=response.FromString,
            )
            for service, methods in (
                (messages.TRAINING_SERVICE, messages.TRAINING_METHODS),
                (messages.SERVICE, messages.METHODS),
            )
            for verb, (request, response) in methods.items()
        }

    def begin(self, verb: str, request: Any, timeout_s: float | None) -> Any:
        """Send a request; ``finish`` waits for the answer."""
        limit = None if timeout_s is None or math.isinf(timeout_s) else timeout_s
        return self._calls[verb].future(request, timeout=limit)

    def finish(self, verb: str, call: Any) -> Any:
        """Return the answer.

        Raises:
            MonolithError: What went wrong, by the class that the server raised; the text names the address.
        """
        try:
            return call.result()
        except grpc.CallError as error:
            raise grpc.translate_error(error, verb, self.address) from error

    def call(self, verb: str, request: Any, timeout_s: float | None) -> Any:
        """Send a request and return the answer; see ``finish``."""
        return self.finish(verb, self.begin(verb, request, timeout_s))

    def close(self) -> None:
        """Let the connection go; calls under way are cancelled."""
        self._channel.close()
