"""The native data plane of a server: listeners on a Unix socket and on TCP, and their token."""

from __future__ import annotations

import secrets
import threading

from monolith import _native
from monolith.core.errors import ShardUnavailable
from monolith.core.scratch_folder import ScratchFolder

__all__ = ["DataPlane"]


class DataPlane:
    """Listens for one shard at a time.

    Args:
        host: Interface of the TCP listener.
        port: TCP port; 0 lets the system choose.
        advertised_host: Host that clients dial.
        max_frame_bytes: Limit of one request and one response.
        max_connections: Connections of each listener.
        max_inflight_bytes: Memory of the requests of each listener.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        advertised_host: str,
        max_frame_bytes: int,
        max_connections: int,
        max_inflight_bytes: int,
    ) -> None:
        self._host = host
        self._port = port
        self._advertised_host = advertised_host
        self._max_frame_bytes = max_frame_bytes
        self._max_connections = max_connections
        self._max_inflight_bytes = max_inflight_bytes
        # Only Connect returns it, which requires the token of the server. New in every instance.
        self._token = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._folder: ScratchFolder | None = None
        self._shard: _native.PsShard | None = None
        self._listeners: list[_native.PsListener] = []
        self._is_closed = False

    def offer(self, shard: _native.PsShard) -> tuple[list[str], bytes]:
        """Listen for a shard, unless done; return the addresses and the token.

        Raises:
            ShardUnavailable: ``close`` was called.
        """
        with self._lock:
            if self._is_closed:  # a Connect that was under way; no other call would close new listeners
                raise ShardUnavailable("the server is stopping and refuses clients")
            if self._shard is not shard:
                self._close()
                self._open(shard)
            return [self._public(one.address) for one in self._listeners], self._token

    def _open(self, shard: _native.PsShard) -> None:
        # A private folder with a short path: the path of a Unix socket has at most 107 bytes.
        self._folder = ScratchFolder("monolith-ps-")
        path = str(self._folder.path / f"{shard.index}.sock")
        try:
            self._listeners.append(self._listener(shard, unix_path=path))
            self._listeners.append(self._listener(shard, host=self._host, port=self._port))
        except BaseException:
            self._close()
            raise
        self._shard = shard

    def _listener(
        self, shard: _native.PsShard, *, unix_path: str = "", host: str = "", port: int = 0
    ) -> _native.PsListener:
        return _native.PsListener(
            shard,
            unix_path=unix_path,
            host=host,
            port=port,
            token=self._token,
            max_frame_bytes=self._max_frame_bytes,
            max_connections=self._max_connections,
            max_inflight_bytes=self._max_inflight_bytes,
        )

    def _public(self, address: str) -> str:
        if not address.startswith("tcp:") or not self._advertised_host:
            return address
        return f"tcp:{self._advertised_host}:{address.rpartition(':')[2]}"

    def close(self) -> None:
        """Close listeners and connections for good, after the calls that are under way."""
        with self._lock:
            self._is_closed = True
            self._close()

    def _close(self) -> None:
        while self._listeners:
            self._listeners.pop().close()
        if self._folder is not None:
            self._folder.close()
            self._folder = None
        self._shard = None
