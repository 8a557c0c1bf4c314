"""Streams TFRecord files, plain or in TensorFlow's "SNAPPY" framing, a piece at a time.

This module handles framing only; records stay bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol, Self

import cramjam

from monolith import _native
from monolith.core.errors import RecordCorrupt

__all__ = ["NO_LIMIT", "Progress", "RecordStream", "SnappySink"]

Progress = Callable[[int, int], None]
"""Called at intervals with the amount done and the total amount, in bytes or in rows."""

NO_LIMIT = 1 << 62
"""More records than any file has."""

_PIECE_BYTES = 4 << 20
_FRAME_BYTES = 16  # of every record: length, checksum, checksum
_LENGTH_BYTES = 4
# Snappy turns at most 64 bytes into 3, so a block that claims a larger factor is corrupt.
_MAX_EXPANSION = 32
_MAX_BLOCK_BYTES = (1 << 30) + (1 << 28)


class RecordStream:
    """The records of one file, read through a window that grows by pieces and shrinks as records are taken.

    Args:
        path: The file.
        snappy: The file is a sequence of [big-endian length, raw snappy block]; offsets in errors are then those of
            the uncompressed stream.
    """

    def __init__(self, path: str | os.PathLike[str], *, snappy: bool = False) -> None:
        self.path = Path(path)
        self.size = self.path.stat().st_size
        self.read = 0
        """Bytes of the file that were read."""
        self.source = f"{self.path} (uncompressed)" if snappy else str(self.path)
        """Name of the stream in errors."""
        self.window = bytearray()
        """Bytes not yet taken."""
        self.offset = 0
        """Where the window begins in the stream."""
        self._file: BinaryIO = open(self.path, "rb", buffering=0)  # noqa: SIM115 - closed by __exit__
        self._pieces = self._blocks() if snappy else self._raw()
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def grow(self) -> bool:
        """Add the next piece to the window; False at the end of the file."""
        piece = next(self._pieces, None)
        if piece is None:
            self._ended = True
            return False
        self.window += piece
        return True

    def take(self, size: int) -> None:
        """Drop the first ``size`` bytes of the window, whose records were read."""
        del self.window[:size]
        self.offset += size

    def records(self, limit: int = NO_LIMIT) -> Iterator[tuple[int, bytes]]:
        """Yield at most ``limit`` of the remaining records, each with its offset in the stream.

        Raises:
            RecordCorrupt: a checksum does not match, a length is impossible, or the file ends inside a record.
        """
        while limit > 0:
            found, size = _native.scan_records(self.window, self.offset, self.source, limit, self._ended)
            offset = self.offset
            self.take(size)
            limit -= len(found)
            for record in found:
                yield offset, record
                offset += len(record) + _FRAME_BYTES
            if not found and not self.grow() and not self.window:
                return

    def skip(self, count: int) -> int:
        """Check and drop ``count`` records; return how many there were before the file ended."""
        done = 0
        while done < count:
            found, size = _native.skip_records(self.window, self.offset, self.source, count - done)
            self.take(size)
            done += found
            if not found and not self.grow():
                break
        return done

    def finish(self) -> None:
        """Check that the file has no more records.

        Raises:
            RecordCorrupt: A record is left; the text names its offset.
        """
        for offset, _ in self.records(1):
            raise RecordCorrupt(f"{self.source}: record at byte {offset}: there are more records than announced")

    def _raw(self) -> Iterator[bytes]:
        while piece := self._file.read(_PIECE_BYTES):
            self.read += len(piece)
            yield piece

    def _blocks(self) -> Iterator[bytes]:
        window = bytearray()
        begin = 0  # where the window starts in the file
        for piece in self._raw():
            window += piece
            at = 0
            while len(window) - at >= _LENGTH_BYTES:
                size = int.from_bytes(window[at : at + _LENGTH_BYTES], "big")
                if size > _MAX_BLOCK_BYTES:
                    raise RecordCorrupt(
                        f"{self.path}: byte {begin + at}: a snappy block of {size} bytes is not possible"
                    )
                end = at + _LENGTH_BYTES + size
                if len(window) < end:
                    break
                yield self._uncompress(bytes(window[at + _LENGTH_BYTES : end]), begin + at)
                at = end
            del window[:at]
            begin += at
        if window:
            raise RecordCorrupt(f"{self.path}: byte {begin}: the file ends inside a snappy block")

    def _uncompress(self, block: bytes, offset: int) -> bytes:
        if _claimed_size(block) > _MAX_EXPANSION * len(block):
            raise RecordCorrupt(f"{self.path}: byte {offset}: a snappy block of {len(block)} bytes claims to be larger")
        try:
            return bytes(cramjam.snappy.decompress_raw(block))
        except cramjam.DecompressionError as exc:
            raise RecordCorrupt(f"{self.path}: byte {offset}: not a snappy block ({exc})") from exc


def _claimed_size(block: bytes) -> int:
    size = 0
    for position, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            break
    return size


class _Sink(Protocol):
    def write(self, data: bytes) -> None: ...


class SnappySink:
    """Writes a stream in TensorFlow's "SNAPPY" framing. Call ``flush`` at the end.

    TensorFlow's own writer fills blocks of 256 KiB, and its reader takes no block above 256 KiB *compressed*. Float
    rows hardly compress, and the worst case of snappy adds a sixth, so ours are as large as still always fits.
    """

    BLOCK_BYTES = 216 << 10

    def __init__(self, sink: _Sink) -> None:
        self._sink = sink
        self._pending = bytearray()

    def write(self, data: bytes) -> None:
        """Append bytes; write each block when it is full."""
        self._pending += data
        whole = len(self._pending) - len(self._pending) % self.BLOCK_BYTES
        for begin in range(0, whole, self.BLOCK_BYTES):
            self._emit(bytes(self._pending[begin : begin + self.BLOCK_BYTES]))
        del self._pending[:whole]

    def flush(self) -> None:
        """Write the pending bytes as a shorter block."""
        if self._pending:
            self._emit(bytes(self._pending))
            self._pending.clear()

    def _emit(self, block: bytes) -> None:
        compressed = bytes(cramjam.snappy.compress_raw(block))
        self._sink.write(len(compressed).to_bytes(_LENGTH_BYTES, "big") + compressed)
