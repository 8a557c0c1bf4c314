"""``RecordReader``: reads the records of one file from any offset, in chunks of serialized messages.

It combines storage, codec and framing.
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
        framing: Header before each record.
        compression: Compression of the whole file.
        offset: Start in the uncompressed stream: 0, or an earlier value of ``offset``. A compressed file is
        decompressed
            up to it.
        record: The number of the record at that offset, for errors.
        read_ahead: Pieces (of a few MB at most) that a thread reads and decompresses in advance; 0 for no thread.

    Raises:
        OSError: The file is absent, or cannot be read.
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
        """The header before each record."""
        compression = codecs.check_compression(compression)
        self.file_bytes = storage.file_bytes(self.path)
        """The size of the file when it was opened."""
        self._file = storage.open_file(self.path)
        try:
            self.codec = self._find_codec(compression)
            """The compression of the file."""
            self._pieces: Iterator[bytes] = codecs.decompress(self._file, self.codec, self.path)
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
        """The offset in the uncompressed stream after the last record that was read."""
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
            RecordCorrupt: The file is corrupt or the framing is wrong. Earlier calls have returned the records before.
        """
        while True:
            chunk = self._frames.take(CHUNK_RECORDS, CHUNK_BYTES, self._damage is not None)
            if chunk is not None:
                return chunk
            if self._damage is not None:
                raise self._damage
            if self._has_ended:
                return None
            self._read_piece()

    def bytes_read(self) -> int:
        """Return the number of bytes read of the (compressed) file, for progress."""
        return int(self._file.tell())

    def close(self) -> None:
        """Close the file, stop the thread, and end a ``read`` that waits in another thread. May be called twice."""
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

    def _read_piece(self) -> None:
        try:
            piece = next(self._pieces, None)
        except RecordCorrupt as error:
            self._damage = error  # raised after the records before it
            return
        if piece is not None:
            self._frames.feed(piece)
            return
        self._has_ended = True
        if self._is_closed:
            return
        if (end := self._end()) < self.file_bytes:
            self._damage = RecordCorrupt(
                f"{self.path} ends at byte {end}, expected {self.file_bytes} bytes as when it was opened; restore the "
                "file, and write new records to a new one"
            )
        else:
            self._frames.finish()

    def _end(self) -> int:
        """Return the place in the (compressed) file at its end."""
        with contextlib.suppress(ValueError):  # another thread has closed the file
            return self.bytes_read()
        return self.file_bytes

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
        RecordCorrupt: The file is corrupt, or ``framing`` is wrong.
    """
    with RecordReader(path, framing=framing, compression=compression) as reader:
        yield from reader
