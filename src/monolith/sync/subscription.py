"""Subscribing: what a publisher streams is kept in a folder of this machine, and the connection is kept up."""

from __future__ import annotations

import logging
import threading
from os import PathLike
from pathlib import Path

from monolith.core.errors import ConfigError, MonolithError
from monolith.rpc import grpc
from monolith.rpc.security import Security
from monolith.sync.stream_cache import StreamCache
from monolith.sync.stream_messages import METHODS, PIECE_BYTES, SERVICE, FollowRequest, Position

__all__ = ["Subscription"]

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_RENEWED_BYTES = 64 << 20
"""Segments that may pile up before everything is asked for anew; or four times what they began with."""


class Subscription:
    """Fills a folder from a publisher, in a thread of its own, until ``close``.

    Args:
        address: ``host:port`` of the publisher.
        folder: Where to; follow it like a published one. Nobody else may write there.
        security: TLS and token of the publisher.
    """

    def __init__(self, address: str, folder: str | PathLike[str], *, security: Security | None = None) -> None:
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isdecimal()):
            raise ConfigError(f"address of a publisher is {address!r}; give host:port")
        self.address = address
        self.error = ""
        """Why there is no connection; empty while there is one."""
        self.failures = 0
        """Connections that failed, or ended."""
        self._cache = StreamCache(folder)
        self._security = security or Security()
        self._ended = threading.Event()
        self._is_settled = threading.Event()
        self._call: object | None = None
        self._renews = False
        self._thread = threading.Thread(target=self._go_on, name="subscription", daemon=True)

    @property
    def folder(self) -> Path:
        """What is to be followed."""
        return self._cache.folder

    def start(self) -> None:
        """Begin to receive."""
        self._thread.start()

    def wait_for_first(self, timeout_s: float) -> bool:
        """Wait until a cut has come since the start, or it is clear that nobody is there; return whether either is."""
        return self._is_settled.wait(timeout_s)

    def close(self) -> None:
        """End the connection; what has come stays in the folder. A second call does nothing."""
        self._ended.set()
        call = self._call
        if call is not None:
            call.cancel()  # type: ignore[attr-defined]
        if self._thread.is_alive():
            self._thread.join()
        self._cache.close()

    def _go_on(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._ended.is_set():
            try:
                if self._receive():
                    pause_s = _FIRST_PAUSE_S
                error = f"{self.address} has ended the stream"
            except (MonolithError, OSError) as failed:
                error = str(failed)
            if self._ended.is_set():
                return
            if self._renews:
                continue
            if error != self.error:
                logger.warning("no cuts come; connecting again address=%s error=%s", self.address, error)
            self.error = error
            self.failures += 1
            self._is_settled.set()
            self._ended.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _receive(self) -> bool:
        """Take what comes until the connection ends; return whether a cut has come.

        Raises:
            MonolithError: What went wrong with it.
        """
        cache = self._cache
        cache.begin()
        held = {} if self._renews else cache.positions()
        self._renews = False
        request = FollowRequest(
            shards=[Position(log=each.log, sequence=each.sequence) for _, each in sorted(held.items())]
        )
        channel = grpc.open_channel(self.address, self._security, 2 * PIECE_BYTES)
        has_come = False
        try:
            call = channel.unary_stream(
                f"/{SERVICE}/Follow",
                request_serializer=FollowRequest.SerializeToString,
                response_deserializer=METHODS["Follow"][1].FromString,
            )(request)
            self._call = call
            if self._ended.is_set():
                return False
            for message in call:
                cut = cache.take(message)
                if cut is None:
                    continue
                has_come = True
                self.error = ""
                self._is_settled.set()
                grown = cache.added_bytes > max(_RENEWED_BYTES, 4 * cache.begun_bytes)
                if message.has_newer_base and grown:
                    self._renews = True
                    return True
            return has_come
        except grpc.CallError as error:
            raise grpc.translate_error(error, "Follow", self.address) from error
        finally:
            self._call = None
            cache.begin()
            channel.close()
