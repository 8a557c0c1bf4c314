"""Receive a publisher's feed into a local folder, and reconnect after failures.

``Subscription`` owns a ``FeedCache`` and one thread. Followers read the cache folder.
"""

from __future__ import annotations

import logging
import threading
import time
from os import PathLike
from pathlib import Path

from monolith.core.errors import ConfigError, MonolithError
from monolith.rpc import grpc
from monolith.rpc.security import Security
from monolith.sync.feed_cache import FeedCache
from monolith.sync.feed_messages import METHODS, PIECE_BYTES, SERVICE, FollowRequest, Position

__all__ = ["Subscription"]

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_RENEWAL_PAUSE_S = 1.0
_RENEWED_BYTES = 64 << 20
"""Bytes of segments after which the subscription requests a full transfer, at least four times the last one."""


class Subscription:
    """Fills a folder from a publisher in a background thread until ``close``.

    Args:
        address: ``host:port`` of the publisher.
        folder: Folder of the cache; followers read it. No other process may write to it.
        security: TLS and token of the publisher.
    """

    def __init__(self, address: str, folder: str | PathLike[str], *, security: Security | None = None) -> None:
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isdecimal()):
            raise ConfigError(f"publisher address is {address!r}, expected host:port")
        self.address = address
        self.error = ""
        """Error of the connection; empty while connected."""
        self.failures = 0
        """Connections that failed or ended."""
        self._cache = FeedCache(folder)
        self._security = security or Security()
        self._ended = threading.Event()
        self._is_settled = threading.Event()
        self._call: object | None = None
        self._renews = False
        self._next_renewal_s = 0.0
        self._thread = threading.Thread(target=self._run, name="subscription", daemon=True)

    @property
    def folder(self) -> Path:
        """Folder of the cache."""
        return self._cache.folder

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def renew(self) -> None:
        """Request a full transfer, because followers found damaged files in the cache. Callable from any thread."""
        now_s = time.monotonic()
        if now_s < self._next_renewal_s:
            return
        self._next_renewal_s = now_s + _RENEWAL_PAUSE_S
        logger.warning("cache damaged, requesting a full transfer address=%s folder=%s", self.address, self.folder)
        self._renews = True
        call = self._call
        if call is not None:
            call.cancel()  # type: ignore[attr-defined]

    def start(self) -> None:
        """Start the thread that receives."""
        self._thread.start()

    def wait_for_first(self, timeout_s: float) -> bool:
        """Wait for the first cut or the first failed connection; return False on timeout."""
        return self._is_settled.wait(timeout_s)

    def close(self) -> None:
        """Close the connection. The folder keeps its content. A second call does nothing."""
        self._ended.set()
        call = self._call
        if call is not None:
            call.cancel()  # type: ignore[attr-defined]
        if self._thread.is_alive():
            self._thread.join()
        self._cache.close()

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._ended.is_set():
            try:
                self._receive()
                error = f"{self.address} closed the feed"
            except (MonolithError, OSError) as failed:
                error = str(failed)
            except Exception as failed:  # an unexpected class must not stop the thread
                logger.exception("feed failed, reconnecting address=%s", self.address)
                error = f"{type(failed).__name__}: {failed}"
            if self._ended.is_set():
                return
            if self._renews:
                continue
            if not self.error:  # a cut has arrived since the last failure
                pause_s = _FIRST_PAUSE_S
            if error != self.error:
                logger.warning("feed disconnected, reconnecting address=%s error=%s", self.address, error)
            self.error = error
            self.failures += 1
            self._is_settled.set()
            self._ended.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _receive(self) -> None:
        """Store messages until the connection ends.

        Raises:
            MonolithError: The connection failed, or a message is invalid.
        """
        cache = self._cache
        renews, self._renews = self._renews, False  # first: ``_run`` makes no pause while it is set
        cache.begin()
        positions = {} if renews else cache.positions()
        request = FollowRequest(
            shards=[Position(log=each.log, sequence=each.sequence) for _, each in sorted(positions.items())]
        )
        channel = grpc.open_channel(self.address, self._security, 2 * PIECE_BYTES)
        try:
            call = channel.unary_stream(
                f"/{SERVICE}/Follow",
                request_serializer=FollowRequest.SerializeToString,
                response_deserializer=METHODS["Follow"][1].FromString,
            )(request)
            self._call = call
            if self._ended.is_set():
                return
            for message in call:
                cut = cache.take(message)
                if cut is None:
                    continue
                self.error = ""
                self._is_settled.set()
                grown = cache.added_bytes > max(_RENEWED_BYTES, 4 * cache.begun_bytes)
                if message.has_newer_base and grown:
                    self._renews = True
                    return
        except grpc.CallError as error:
            raise grpc.translate_error(error, "Follow", self.address) from error
        finally:
            self._call = None
            cache.begin()
            channel.close()
