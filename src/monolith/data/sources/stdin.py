"""Records from a binary stream that can be read once: standard input, a pipe, a socket's file.

The stream comes as an argument. Records are given as soon as they are complete.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
from collections.abc import Callable
from typing import BinaryIO, cast

from monolith import _native
from monolith.core.errors import ConfigError, DataError, RecordCorrupt
from monolith.data.records import codecs
from monolith.data.records.codecs import Codec, Compression
from monolith.data.records.detect import KINDS, Detection, detect_bytes
from monolith.data.records.framing import Framing
from monolith.data.records.reader import LOT_BYTES, LOT_RECORDS
from monolith.data.sources._explain import check_first_records, with_remedy
from monolith.data.sources.base import Position, RecordKind

__all__ = ["StdinSource"]

_PIECE_BYTES = 1 << 20
_HEAD_BYTES = 1 << 18  # kept to explain what went wrong: a stream cannot be read again


class StdinSource:
    """The records of one stream, as they come.

    (A compressed stream gives about 1 MiB at a time.) A record that the end of the stream cuts off is an error, and so
    are flags that do not fit: the first records are looked at, and the error says which flags would fit. To resume,
    give the same stream from its beginning; what was read before is skipped.

    Args:
        stream: Any binary stream, for example ``sys.stdin.buffer``. It is not closed.
        record: Which message the records are.
        framing: What stands before each record; ``Framing()`` when not given.
        compression: How the stream is compressed; "auto" looks at its first bytes.
        name: What to call it in errors.

    Raises:
        ConfigError: An argument is wrong.
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
            raise ConfigError(f"record is {record!r}; give one of {', '.join(KINDS)}")
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
    def record(self) -> RecordKind:
        """Which message the records are."""
        return self._record

    def read(self) -> _native.Records | None:
        """Return the records that are complete, waiting for one at least; None at the end, or when closed.

        Raises:
            RecordCorrupt: The stream is damaged or cut off, or the framing is wrong; the text says which would fit.
            SchemaMismatch: The records are other messages than ``record``.
        """
        if self._damage is not None:
            raise self._damage
        is_first = self._frames.offset == 0
        try:
            lot = self._next_lot()
        except RecordCorrupt as error:
            if self._stream.is_interrupted:  # to a codec that looks like a stream cut short
                return None
            self._damage = with_remedy(error, self._framing, self._codec, self._look)
            raise self._damage from error
        if lot is None:
            return None
        if is_first:
            sort_id = self._frames.first_sort_id
            check_first_records(lot, sort_id, self._record, self._framing, self._codec, self._look)
        return lot

    def position(self) -> Position:
        """Return how far the stream was read."""
        return {"offset": self._frames.offset, "records": self._frames.records}

    def resume(self, position: Position) -> None:
        """Skip what was read before; the stream must be the same, from its beginning.

        Raises:
            ConfigError: Records were read already.
            DataError: The position is none, or (from ``read``) the stream ends before it.
        """
        if self._pieces is not None:
            raise ConfigError("resume comes before the first read; make a new source")
        try:
            self._skip, records = int(position["offset"]), int(position["records"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{position!r} is not the position of a stream ({error!r})") from error
        self._frames = _native.FrameReader(self._framing.bits, self._name, self._skip, records)

    def committed(self, position: Position) -> None:
        """Do nothing: nobody keeps the stream."""

    def close(self) -> None:
        """End a ``read`` that waits in another thread, and every one after. May be called twice."""
        self._stream.interrupt()

    def _next_lot(self) -> _native.Records | None:
        pieces = self._start()
        while not self._stream.is_interrupted:
            lot = self._frames.take(LOT_RECORDS, LOT_BYTES, True)
            if lot is not None or self._is_finished:
                return lot
            self._feed(pieces())
        return None

    def _start(self) -> Callable[[], bytes | None]:
        """Find the codec, from the first bytes that come."""
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
                pieces = codecs.decompressed(stream, self._codec, self._name)
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
                f"{self._name} ends {self._skip} bytes before the place to go on at; give the same stream again"
            )
        self._frames.finish()

    def _look(self) -> Detection:
        return detect_bytes(self._stream.head, is_whole=self._is_finished and self._stream.has_whole_head)


class _Interruptible:
    """A stream whose first bytes are kept, and whose reads another thread can end."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.head = b""
        self.has_whole_head = True
        self.is_interrupted = False
        self._waiting = b""
        self._wake, self._alarm = os.pipe()
        self._descriptor = _descriptor(stream)

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes, as soon as there are some; none at the end or when interrupted."""
        if self._waiting:
            piece, self._waiting = self._waiting[:size], self._waiting[size:]
            return piece
        if self.is_interrupted or not self._wait():
            return b""
        # A buffered stream gives what one read of the system brought, and keeps nothing back of less than `size`.
        piece = self._stream.read1(size) if isinstance(self._stream, io.BufferedIOBase) else self._stream.read(size)
        kept = piece[: _HEAD_BYTES - len(self.head)]
        self.head += kept
        self.has_whole_head = self.has_whole_head and len(kept) == len(piece)
        return piece

    def peek(self) -> bytes:
        """The first bytes, enough to know a codec by, without taking them."""
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
        """Whether the stream has something, or has ended; False when interrupted."""
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
