"""Compiles ``native_peers.cc`` for this machine and calls it."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from pathlib import Path

from engine.peers import PeerMissing
from engine.workload import Ids, Rows

__all__ = ["RandomLines", "UnorderedMap", "arithmetic_per_s"]

SOURCE = Path(__file__).with_name("native_peers.cc")
BUILD = SOURCE.parents[2] / "build" / "bench"
FLAGS = ("-std=c++20", "-O3", "-march=native", "-pthread", "-shared", "-fPIC")
DISTANCES = (0, 4, 8, 16, 32, 64)

_SIZE, _HANDLE, _INT = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "buffer_new": (_HANDLE, [_SIZE, _INT]),
    "buffer_visit": (ctypes.c_double, [_HANDLE, _INT, _SIZE, _SIZE, ctypes.c_uint64, ctypes.c_bool]),
    "arithmetic": (ctypes.c_double, [_INT, _SIZE]),
    "map_new": (_HANDLE, []),
    "map_assign": (None, [_HANDLE, _HANDLE, _HANDLE, _SIZE]),
    "map_size": (_SIZE, [_HANDLE]),
    "map_free": (None, [_HANDLE]),
}


def _library() -> ctypes.CDLL:
    compiler = shutil.which("g++")
    if compiler is None:
        raise PeerMissing("there is no g++ to compile benchmarks/engine/native_peers.cc with")
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(FLAGS).encode()).hexdigest()[:16]
    path = BUILD / f"native_peers-{digest}.so"
    if not path.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".tmp")
        subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", str(fresh)], check=True)
        fresh.rename(path)
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class RandomLines:
    """Bare prefetching loops over random lines of a buffer: what the memory of this machine can do."""

    def __init__(self, size: int, threads: int, lines: int) -> None:
        self._library = _library()
        self._threads = threads
        self._lines = lines
        self._calls = 0
        self._buffer = self._library.buffer_new(size, threads)
        if not self._buffer:
            raise PeerMissing(f"no memory for a buffer of {size} bytes")
        speeds = {distance: max(self._visit(threads, distance, False) for _ in range(3)) for distance in DISTANCES}
        self.distance = max(DISTANCES, key=lambda distance: speeds[distance])

    def reads_per_s(self, threads: int | None = None) -> float:
        """Return the lines read per second, with all threads unless given."""
        return self._visit(threads or self._threads, self.distance, False)

    def updates_per_s(self, threads: int | None = None) -> float:
        """Return the lines read and written per second."""
        return self._visit(threads or self._threads, self.distance, True)

    def _visit(self, threads: int, distance: int, writes: bool) -> float:
        self._calls += 1
        speed: float = self._library.buffer_visit(self._buffer, threads, self._lines, distance, self._calls, writes)
        return speed


def arithmetic_per_s(threads: int) -> float:
    """Return the pieces of pure arithmetic per second, of all threads together."""
    speed: float = _library().arithmetic(threads, 500 * threads)
    return speed


class UnorderedMap:
    """``std::unordered_map<int64_t, Row*>`` with one ``new`` per row, on one thread."""

    def __init__(self) -> None:
        self._library = _library()
        self._map = self._library.map_new()

    def assign(self, ids: Ids, values: Rows) -> None:
        """Set the values of every id."""
        self._library.map_assign(self._map, ids.ctypes.data, values.ctypes.data, len(ids))

    def __len__(self) -> int:
        return int(self._library.map_size(self._map))

    def close(self) -> None:
        """Free all rows."""
        self._library.map_free(self._map)
