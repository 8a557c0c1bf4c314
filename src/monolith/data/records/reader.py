"""The records of one file, from any offset: storage, codec and framing put together.

Gives chunks of serialized messages. Which message, and which files, is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from types import TracebackType
from typing import NoReturn, Self

from monolith import _native
from monolith.core import storage
from monolith.core.errors import DataError, RecordCorrupt
from monolith.data.records import codecs
from monolith.data.records.codecs import Codec, Compression
from monolith.data.records.framing import Framing
from monolith.data.records.read_ahead import ReadAhead

__all__ = ["CHUNK_BYTES", "CHUNK_RECORDS", "RecordReader", "read_records"]

CHUNK_BYTES = 1 << 20
"""A chunk ends before this many bytes of payload, unless its first record alone has more."""

CHUNK_RECORDS = 4096
"""A chunk has no more records than this."""


class RecordReader:
    """Reads one file in chunks. Chunks depend on the records only: a file resumed after a chunk gives the same ones.

    Args:
        path: A local path or a URL.
        framing: What stands before each record.
        compression: How the whole file is compressed.
        offset: Where to begin in the uncompressed stream: 0, or what ``offset`` was. A plain file is entered at once;
            a compressed one is decompressed up to there.
        record: The number of the record there, for errors.
        read_ahead: Pieces (of a few MB at most) that a thread reads and decompresses in advance; 0 for no thread.

    Raises:
        OSError: There is no such file, or it cannot be read.
        DataError: The file ends before ``offset``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        framing: Framing | None = None,
        compression: Compression = "auto",
        offset: int = 0,
        record: int = 0,
        read_ahead: int = 0,
    ) -> None:
        self.path = os.fspath(path)
        """The file."""
        self.framing = Framing() if framing is None else framing
        """How its records are set apart."""
        compression = codecs.check_compression(compression)
        self.file_bytes = storage.file_bytes(self.path)
        """Its size when it was opened."""
        self._file = storage.open_file(self.path)
        try:
            self.codec = self._find_codec(compression)
            """How it is compressed."""
            self._pieces: Iterator[bytes] = codecs.decompressed(self._file, self.codec, self.path)
            self._frames = _native.FrameReader(self.framing.bits, self._name(), offset, record)
            self._skip(offset)
        except BaseException:
            self._file.close()
            raise
        self._ahead = ReadAhead(self._pieces, read_ahead) if read_ahead else None
        self._pieces = self._ahead or self._pieces
        self._is_closed = False
        self._has_ended = False
        self._damage: RecordCorrupt | None = None

    @property
    def offset(self) -> int:
        """Where the uncompressed stream stands after the records that were read."""
        return self._frames.offset

    @property
    def records(self) -> int:
        """Number of records before ``offset``."""
        return self._frames.records

    @property
    def first_sort_id(self) -> bytes:
        """The sort id of the first record that was read, where the framing has one."""
        return self._frames.first_sort_id

    def read(self) -> _native.Records | None:
        """Return the next chunk, or None at the end.

        Raises:
            RecordCorrupt: The file is damaged or the framing is wrong; records before the bad one were given.
        """
        while True:
            chunk = self._frames.take(CHUNK_RECORDS, CHUNK_BYTES, self._damage is not None)
            if chunk is not None:
                return chunk
            if self._damage is not None:
                raise self._damage
            if self._has_ended:
                return None
            self._read_on()

    def bytes_read(self) -> int:
        """Return how far the file itself was read, for progress."""
        return int(self._file.tell())

    def close(self) -> None:
        """Let go of the file and the thread. May be called twice, and ends a ``read`` that waits in another thread."""
        self._is_closed = True
        if self._ahead is not None:
            self._ahead.close()
        self._file.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # the constructor may have failed early
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        """Yield the payloads one by one."""
        while (chunk := self.read()) is not None:
            for index in range(len(chunk)):
                yield chunk[index]

    def _read_on(self) -> None:
        try:
            piece = next(self._pieces, None)
        except RecordCorrupt as error:
            self._damage = error  # raised when the records before it are given out
            return
        if piece is None:
            self._has_ended = True
            if not self._is_closed:
                self._frames.finish()
        else:
            self._frames.feed(piece)

    def _find_codec(self, compression: Compression) -> Codec:
        if compression != "auto":
            return compression
        head = storage.read_up_to(self._file, codecs.HEAD_BYTES)
        self._file.seek(0)
        return codecs.resolve_codec(compression, self.path, head, is_whole=len(head) == self.file_bytes)

    def _name(self) -> str:
        return self.path if self.codec == "none" else f"{self.path} (uncompressed)"

    def _skip(self, offset: int) -> None:
        if self.codec == "none":
            if offset > self.file_bytes:
                self._fail_short(offset, self.file_bytes)
            self._file.seek(offset)
            return
        left = offset
        while left > 0:
            piece = next(self._pieces, None)
            if piece is None:
                self._fail_short(offset, offset - left)
            if len(piece) > left:
                self._frames.feed(memoryview(piece)[left:])
            left -= min(left, len(piece))

    def _fail_short(self, offset: int, end: int) -> NoReturn:
        raise DataError(
            f"{self._name()}: cannot resume at byte {offset}, expected at most {end}, its end; restore the file"
        )


def read_records(
    path: str | os.PathLike[str], *, framing: Framing | None = None, compression: Compression = "auto"
) -> Iterator[bytes]:
    """Yield the payloads of one file.

    Raises:
        RecordCorrupt: The file is damaged, or ``framing`` is wrong.
    """
    with RecordReader(path, framing=framing, compression=compression) as reader:
        yield from reader
