"""``StdinSource``: reads records from a binary stream that can be read once: standard input, a pipe, a socket's file.

Records are returned as soon as they are complete.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
from collections.abc import Callable, Sequence
from typing import BinaryIO, cast

from typing_extensions import override

from monolith import _native
from monolith.core.errors import ConfigError, DataError, RecordCorrupt
from monolith.data.records import codecs
from monolith.data.records.codecs import Codec, Compression
from monolith.data.records.detect import KINDS, Detection, detect_bytes
from monolith.data.records.framing import Framing
from monolith.data.records.reader import CHUNK_BYTES, CHUNK_RECORDS
from monolith.data.sources._explain import check_first_records, with_remedy
from monolith.data.sources.base import Position, RecordKind, Source

__all__ = ["StdinSource"]

_PIECE_BYTES = 1 << 20
_HEAD_BYTES = 1 << 18  # kept for error messages: a stream cannot be read again


class StdinSource(Source):
    """Reads the records of one stream as they arrive; a compressed stream in pieces of about 1 MiB.

    A record that the end of the stream cuts off is an error. So are framing flags that do not fit the first records;
    the error names the flags that fit. To resume, pass the same stream from its beginning; the source skips to the
    position.

    Args:
        stream: Any binary stream, for example ``sys.stdin.buffer``. The source does not close it.
        record: The message type of the records.
        framing: Header before each record; default: ``Framing()``.
        compression: Compression of the stream; "auto" detects it from the first bytes.
        name: Name of the stream in errors.

    Raises:
        ConfigError: An argument is invalid.
    """

    def __init__(
        self,
        stream: BinaryIO,
        *,
        record: RecordKind,
        framing: Framing | None = None,
        compression: Compression = "auto",
        name: str = "stdin",
    ) -> None:
        if record not in KINDS:
            raise ConfigError(f"record is {record!r}, expected one of {', '.join(KINDS)}")
        self._record = record
        self._framing = Framing() if framing is None else framing
        self._compression = codecs.check_compression(compression)
        self._name = name
        self._stream = _Interruptible(stream)
        self._pieces: Callable[[], bytes | None] | None = None
        self._codec: Codec = "none"
        self._frames = _native.FrameReader(self._framing.bits, name)
        self._is_finished = False
        self._damage: RecordCorrupt | None = None
        self._skip = 0

    @property
    @override
    def record(self) -> RecordKind:
        return self._record

    @property
    @override
    def is_ordered(self) -> bool:
        return True

    @override
    def read(self) -> _native.Records | None:
        """Return the complete records, waiting for at least one; None at the end, or when closed.

        Raises:
            RecordCorrupt: The stream is corrupt or cut off, or the framing is wrong; the text names one that fits.
            SchemaMismatch: The records are other messages than ``record``.
        """
        if self._damage is not None:
            raise self._damage
        is_first = self._frames.offset == 0
        try:
            chunk = self._next_chunk()
        except RecordCorrupt as error:
            if self._stream.is_interrupted:  # a codec reports an interrupted stream as cut off
                return None
            self._damage = with_remedy(error, self._framing, self._codec, self._look)
            raise self._damage from error
        if chunk is None:
            return None
        if is_first:
            sort_id = self._frames.first_sort_id
            check_first_records(chunk, sort_id, self._record, self._framing, self._codec, self._look)
        return chunk

    @override
    def position(self) -> Position:
        """Return the offset in the decompressed stream, and the number of records before it."""
        return {"offset": self._frames.offset, "records": self._frames.records}

    @override
    def resume(self, position: Position, then: Sequence[Position] = ()) -> None:
        """Skip to a position; the stream must be the same, from its beginning.

        Raises:
            ConfigError: The source has read records already.
            DataError: The position is invalid, or (from ``read``) the stream ends before it.
        """
        if self._pieces is not None:
            raise ConfigError("resume() is called after read(), expected before the first read; make a new source")
        try:
            self._skip, records = int(position["offset"]), int(position["records"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{position!r} is not the position of a stream ({error!r})") from error
        self._frames = _native.FrameReader(self._framing.bits, self._name, self._skip, records)

    @override
    def committed(self, position: Position) -> None:
        pass  # a stream keeps no position

    @override
    def close(self) -> None:
        """End a ``read`` that waits in another thread, and every later one. May be called twice."""
        self._stream.interrupt()

    def _next_chunk(self) -> _native.Records | None:
        pieces = self._start()
        while not self._stream.is_interrupted:
            chunk = self._frames.take(CHUNK_RECORDS, CHUNK_BYTES, True)
            if chunk is not None or self._is_finished:
                return chunk
            self._feed(pieces())
        return None

    def _start(self) -> Callable[[], bytes | None]:
        """Detect the codec from the first bytes; return the function that reads the next piece."""
        if self._pieces is None:
            if self._compression == "auto":
                head = self._stream.peek()
                self._codec = codecs.codec_of_head(head) or "none"
            else:
                self._codec = self._compression
            stream = cast(BinaryIO, self._stream)
            if self._codec == "none":
                self._pieces = lambda: stream.read(_PIECE_BYTES) or None
            else:
                pieces = codecs.decompress(stream, self._codec, self._name)
                self._pieces = lambda: next(pieces, None)
        return self._pieces

    def _feed(self, piece: bytes | None) -> None:
        if piece is None:
            self._finish()
            return
        skipped = min(self._skip, len(piece))
        self._skip -= skipped
        if skipped < len(piece):
            self._frames.feed(memoryview(piece)[skipped:])

    def _finish(self) -> None:
        if self._stream.is_interrupted:
            return
        self._is_finished = True
        if self._skip:
            raise DataError(
                f"{self._name} ends {self._skip} bytes before the position to resume at; pass the same stream again"
            )
        self._frames.finish()

    def _look(self) -> Detection:
        return detect_bytes(self._stream.head, is_whole=self._is_finished and self._stream.has_whole_head)


class _Interruptible:
    """Wraps a stream: keeps its first bytes, and lets another thread end a read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.head = b""
        self.has_whole_head = True
        self.is_interrupted = False
        self._waiting = b""
        self._wake, self._alarm = os.pipe()
        self._descriptor = _descriptor(stream)

    def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes, as soon as there are some; empty at the end or when interrupted."""
        if self._waiting:
            piece, self._waiting = self._waiting[:size], self._waiting[size:]
            return piece
        if self.is_interrupted or not self._wait():
            return b""
        # ``read1`` returns the bytes of one system call, without waiting for ``size`` of them.
        piece = self._stream.read1(size) if isinstance(self._stream, io.BufferedIOBase) else self._stream.read(size)
        kept = piece[: _HEAD_BYTES - len(self.head)]
        self.head += kept
        self.has_whole_head = self.has_whole_head and len(kept) == len(piece)
        return piece

    def peek(self) -> bytes:
        """Return the first bytes, enough to detect a codec, without consuming them."""
        while len(self._waiting) < 16 and (piece := self._read_more()):
            self._waiting += piece
        return self._waiting

    def interrupt(self) -> None:
        if not self.is_interrupted:
            self.is_interrupted = True
            os.write(self._alarm, b"!")

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self._wake)
            os.close(self._alarm)

    def _read_more(self) -> bytes:
        kept, self._waiting = self._waiting, b""
        piece = self.read(_PIECE_BYTES)
        self._waiting = kept
        return piece

    def _wait(self) -> bool:
        """Wait until the stream has bytes or has ended; return False when interrupted."""
        if self._descriptor is None:
            return True
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        return all(descriptor != self._wake for descriptor, _ in poll.poll())


def _descriptor(stream: BinaryIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, AttributeError):
        return None  # a stream in memory never waits
