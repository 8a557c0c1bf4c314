"""Serve a published folder over gRPC to model servers that cannot read it.

``FeedServer`` runs in the trainer, or in any process that sees the folder. Each subscriber occupies one thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from monolith.artifacts.delta_log import LogPosition, read_cut
from monolith.core.errors import ArtifactError, ConfigError
from monolith.rpc import grpc
from monolith.rpc.security import Security
from monolith.sync.feed_messages import METHODS, PIECE_BYTES, SERVICE, FollowRequest, FollowResponse
from monolith.sync.feed_pieces import CutPieces

__all__ = ["FeedServer"]

logger = logging.getLogger(__name__)

_MAX_SUBSCRIBERS = 256
_PATIENCE = 100  # failed reads of a cut before the call fails


class FeedServer:
    """Streams cuts to subscribers from ``start`` to ``stop``.

    Args:
        root: Published folder.
        host: Interface to listen on; the default is loopback.
        port: Port; 0 selects a free port.
        security: TLS and token.
        poll_s: Seconds between two looks for a new cut.
    """

    def __init__(
        self,
        root: str | PathLike[str],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        security: Security | None = None,
        poll_s: float = 0.02,
    ) -> None:
        if not 0 <= port < 1 << 16:
            raise ConfigError(f"port is {port!r}, expected 0 (any) to 65535")
        self._root = Path(root)
        self._interface = host, port
        self._security = security or Security()
        self._poll_s = poll_s
        self._ended = threading.Event()
        self._workers = ThreadPoolExecutor(_MAX_SUBSCRIBERS, thread_name_prefix="sync")
        self._server = grpc.make_server(
            self._workers,
            {SERVICE: grpc.stream_handlers(METHODS, {"Follow": self._follow})},
            self._security,
            2 * PIECE_BYTES,
            max_calls=_MAX_SUBSCRIBERS,
        )
        self.address = ""
        """Address of the server, ``host:port``; empty before ``start``."""

    def start(self) -> str:
        """Start listening; return the address.

        Raises:
            ClusterError: The port is in use.
        """
        host, port = self._interface
        joined = f"[{host}]" if ":" in host else host
        self.address = f"{joined}:{grpc.bind(self._server, f'{joined}:{port}', self._security)}"
        self._server.start()
        logger.info("feed server listening address=%s folder=%s", self.address, self._root)
        return self.address

    def stop(self, grace_s: float = 2.0) -> None:
        """Send the newest cut to every subscriber, and stop. A second call does nothing."""
        self._ended.set()
        self._server.stop(grace_s).wait()
        self._workers.shutdown(wait=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(0.0 if kind is not None else 2.0)

    def _follow(self, request: FollowRequest, context: Any) -> Iterator[FollowResponse]:
        positions = {shard: LogPosition(each.log, each.sequence) for shard, each in enumerate(request.shards)}
        pieces = CutPieces(self._root, positions)
        sent, failures, pause_s, is_last = None, 0, 0.0, False
        while context.is_active() and not is_last:
            is_last = self._ended.wait(pause_s)  # the first look is immediate
            pause_s = self._poll_s
            try:
                cut = read_cut(self._root)
                if cut is not None and cut != sent:
                    yield from pieces.to(cut)
                    sent, failures = cut, 0
            except ArtifactError:  # a newer cut may have replaced the files
                failures += 1
                if failures > _PATIENCE:
                    raise
