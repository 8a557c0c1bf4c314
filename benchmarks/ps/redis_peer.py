"""The peer: vectors as raw bytes in Redis, one key per id, fetched with pipelined ``MGET``.

The server is a process of our own, without persistence, on a Unix socket and on TCP. The client is redis-py with the
parser of hiredis. Of sockets and numbers of keys per MGET the fastest is chosen before the clock starts.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from measure.results import PeerMissing
from measure.timing import seconds_of
from monolith.core.free_ports import free_port
from ps.workload import DIM

__all__ = ["RedisTable", "redis_program"]

KEYS_PER_MGET = (64, 256, 1024, 4096, 16384, 65536)
START_S = 10.0
_KEYS_PER_MSET = 2048


def redis_program() -> str:
    """Return the file of the server.

    Debian's redis-tools has it without a service that would start by itself: redis-check-rdb is the same program, and
    looks at the name it is called by.
    """
    found = shutil.which("redis-server") or shutil.which("redis-check-rdb")
    if found is None:
        raise PeerMissing("there is no redis-server; as root: apt-get install redis-tools")
    return found


class RedisTable:
    """A Redis server, and how one gets vectors out of it."""

    def __init__(self) -> None:
        try:
            import hiredis  # noqa: F401  redis-py finds it by itself
            import redis
        except ImportError as error:
            raise PeerMissing(f"{error}; pip install --no-deps -r requirements-bench.lock") from None
        program = redis_program()
        self._folder = tempfile.TemporaryDirectory(prefix="bench-redis-")
        path = str(Path(self._folder.name) / "redis.sock")
        port = free_port()
        arguments = ["--unixsocket", path, "--bind", "127.0.0.1", "--port", str(port)]
        arguments += ["--save", "", "--appendonly", "no", "--dir", self._folder.name, "--loglevel", "warning"]
        self._process = subprocess.Popen(
            ["redis-server", *arguments], executable=program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._clients: dict[str, Any] = {
            "unix": redis.Redis(unix_socket_path=path),
            "tcp": redis.Redis(host="127.0.0.1", port=port),
        }
        self.socket = "unix"
        self.keys_per_mget = 1024
        try:
            self.name = f"Redis {self._await()['redis_version']}, redis-py {redis.__version__}"
        except BaseException:
            self.close()
            raise

    def _await(self) -> dict[str, Any]:
        from redis.exceptions import ConnectionError as NotYet

        deadline = time.monotonic() + START_S
        while True:
            try:
                info: dict[str, Any] = self._clients["unix"].info("server")
                return info
            except NotYet as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise PeerMissing(f"redis-server does not start: {error}") from None
                time.sleep(0.02)

    def fill(self, ids: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
        """Store vectors."""
        keys, values = ids.view("V8").tolist(), rows.view(f"V{4 * DIM}").ravel().tolist()
        pipe = self._clients["unix"].pipeline(transaction=False)
        for begin in range(0, len(keys), _KEYS_PER_MSET):
            end = begin + _KEYS_PER_MSET
            pipe.mset(dict(zip(keys[begin:end], values[begin:end], strict=True)))
        pipe.execute()

    def lookup(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the vectors of all ids, (ids, DIM)."""
        keys = ids.view("V8").tolist()
        pipe = self._clients[self.socket].pipeline(transaction=False)
        for begin in range(0, len(keys), self.keys_per_mget):
            pipe.mget(keys[begin : begin + self.keys_per_mget])
        values = b"".join([b"".join(part) for part in pipe.execute()])
        return np.frombuffer(values, np.float32).reshape(-1, DIM)

    def choose(self, calls: Sequence[NDArray[np.int64]]) -> None:
        """Take the socket and the number of keys per MGET that are fastest here."""
        times = {}
        for name in self._clients:
            for keys in KEYS_PER_MGET:
                self.socket, self.keys_per_mget = name, keys
                self.lookup(calls[0])
                times[name, keys] = min(seconds_of(lambda: self.lookup(calls[1])) for _ in range(3))
        self.socket, self.keys_per_mget = min(times, key=lambda choice: times[choice])

    def close(self) -> None:
        """End the server."""
        for client in self._clients.values():
            client.close()
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
