"""``ServerLink``: the calls of a client to one server; ``Greeting``: the response of Connect."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from monolith.core.errors import ClusterError, ConfigError
from monolith.ps import messages
from monolith.rpc import grpc
from monolith.rpc.security import Security

__all__ = ["MAX_MESSAGE_BYTES", "Greeting", "ServerLink"]

MAX_MESSAGE_BYTES = 256 << 20
"""Limit of one request and one response; the default of servers."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """Identity of a server, from its Connect response."""

    instance: int
    """Random number of this instance of the server."""
    index: int
    shards: int
    data_plane: tuple[str, ...]
    token: bytes
    rows: int

    @classmethod
    def read(cls, response: messages.ConnectResponse) -> Greeting:
        """Return the greeting in a response."""
        return cls(
            response.instance,
            response.index,
            response.shards,
            tuple(response.data_plane),
            response.data_plane_token,
            response.rows,
        )


class ServerLink:
    """Calls one server. Thread safe; connects on first use.

    Args:
        address: ``host:port``, with or without ``http://``; ``https://`` needs TLS in ``security``.
        security: TLS and token.
        max_message_bytes: Limit of one request and one response.
    """

    def __init__(
        self, address: str, security: Security | None = None, max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        self.address = address.removeprefix("http://").removeprefix("https://").rstrip("/")
        host, colon, port = self.address.rpartition(":")
        if not (host and colon and port.isdecimal()):
            raise ConfigError(f"address of a parameter server is {address!r}, expected host:port")
        if address.startswith("https://") and not (security or Security()).is_encrypted:
            raise ConfigError(
                f"address of a parameter server is {address!r}, but TLS is off; give the authority of its certificate "
                "(ca_file), or write http://"
            )
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
        """Send a request; ``finish`` waits for the response.

        Raises:
            ClusterError: The connection is closed.
        """
        limit = None if timeout_s is None or math.isinf(timeout_s) else timeout_s
        try:
            return self._calls[verb].future(request, timeout=limit)
        except ValueError as error:  # of gRPC, if another thread has closed the channel
            raise ClusterError(f"{verb} at {self.address}: the connection is closed ({error})") from error

    def finish(self, verb: str, call: Any) -> Any:
        """Return the response of a call.

        Raises:
            MonolithError: The call failed; the class is that of the server's error, and the text names the address.
        """
        try:
            return call.result()
        except grpc.CallError as error:
            raise grpc.translate_error(error, verb, self.address) from error

    def call(self, verb: str, request: Any, timeout_s: float | None) -> Any:
        """Send a request and return the response; see ``finish``."""
        return self.finish(verb, self.begin(verb, request, timeout_s))

    def close(self) -> None:
        """Close the connection, and cancel calls under way."""
        self._channel.close()
