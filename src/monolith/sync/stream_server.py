"""Gives a published folder to servers that do not see it, over gRPC: beside a trainer, or wherever it is seen."""

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
from monolith.sync.stream_messages import METHODS, PIECE_BYTES, SERVICE, FollowRequest, FollowResponse
from monolith.sync.stream_pieces import CutPieces

__all__ = ["StreamServer"]

logger = logging.getLogger(__name__)

_MAX_SUBSCRIBERS = 256
_PATIENCE = 100  # looks at a cut that cannot be read, before its subscribers are told


class StreamServer:
    """Listens after ``start``, until ``stop``.

    Args:
        root: What is published.
        host: Interface to listen on; the default is this machine only.
        port: Port; 0 lets the system choose.
        security: TLS and token.
        poll_s: How long to wait before looking for another cut.
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
            raise ConfigError(f"port is {port}; give 0 (any) to 65535")
        self._root = Path(root)
        self._place = host, port
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
        """Where it listens, ``host:port``; empty before ``start``."""

    def start(self) -> str:
        """Begin to answer; return the address.

        Raises:
            ClusterError: The port is taken.
        """
        host, port = self._place
        joined = f"[{host}]" if ":" in host else host
        self.address = f"{joined}:{grpc.bind(self._server, f'{joined}:{port}', self._security)}"
        self._server.start()
        logger.info("published cuts are streamed address=%s folder=%s", self.address, self._root)
        return self.address

    def stop(self, grace_s: float = 2.0) -> None:
        """Send the newest cut to those who lack it, and end; a second call does nothing."""
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
        at = {shard: LogPosition(each.log, each.sequence) for shard, each in enumerate(request.shards)}
        pieces = CutPieces(self._root, at)
        sent, failures, is_last = None, 0, False
        while context.is_active() and not is_last:
            is_last = self._ended.wait(self._poll_s if sent is not None or failures else 0)
            try:
                cut = read_cut(self._root)
                if cut is not None and cut != sent:
                    yield from pieces.to(cut)
                    sent, failures = cut, 0
            except ArtifactError:  # perhaps removed while it was read, and there is a newer one
                failures += 1
                if failures > _PATIENCE:
                    raise
