"""The native data plane of a server: listeners on a Unix socket and on TCP, and their token."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path

from monolith import _native

__all__ = ["DataPlane", "remove_dead_folders"]

logger = logging.getLogger(__name__)

_PREFIX = "monolith-ps-"
_YOUNG_S = 60.0
"""Age below which a folder may belong to a server that is about to listen."""


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
        self._folder: Path | None = None
        self._shard: _native.PsShard | None = None
        self._listeners: list[_native.PsListener] = []

    def offer(self, shard: _native.PsShard) -> tuple[list[str], bytes]:
        """Listen for a shard, unless done; return the addresses and the token."""
        with self._lock:
            if self._shard is not shard:
                self._close()
                self._open(shard)
            return [self._public(one.address) for one in self._listeners], self._token

    def _open(self, shard: _native.PsShard) -> None:
        # A private folder with a short path: the path of a Unix socket has at most 107 bytes.
        remove_dead_folders(Path(tempfile.gettempdir()))
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        path = str(self._folder / f"{shard.index}.sock")
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
        """Close listeners and connections after the calls that are under way."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        while self._listeners:
            self._listeners.pop().close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        self._shard = None


def remove_dead_folders(folder: Path) -> int:
    """Remove socket folders of servers that were killed, of this user; return their number.

    A folder is dead if no process listens on its sockets and it is older than a minute.
    """
    removed = 0
    for path in folder.glob(f"{_PREFIX}*"):
        try:
            stat = path.stat(follow_symlinks=False)
            is_old = time.time() - stat.st_mtime > _YOUNG_S
            if stat.st_uid == os.getuid() and is_old and not any(_is_listening(one) for one in path.glob("*.sock")):
                shutil.rmtree(path)
                removed += 1
        except OSError as error:  # removed meanwhile, or not a folder
            logger.debug("socket folder not removed path=%s error=%s", path, error)
    return removed


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # busy, or not ours to judge
    return True
