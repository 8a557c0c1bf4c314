"""``RecordWriter``: writes files of serialized messages, whole or not at all.

It combines framing, codec and storage.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Self

from monolith import _native
from monolith.core import storage
from monolith.core.errors import ConfigError
from monolith.data.records import codecs
from monolith.data.records.codecs import Compression
from monolith.data.records.compressors import compressor
from monolith.data.records.framing import Framing

__all__ = ["RecordWriter"]


class RecordWriter:
    """Appends records to a new file, which appears under its name when it is closed.

    The bytes go to ``<path>-tmp-<random>``, which ``close`` renames. A killed writer leaves no partial file under the
    name, and an earlier file of that name stays until ``close``. An exception in a ``with`` block publishes nothing.

    Args:
        path: A local path or a URL.
        framing: Header before each record.
        compression: A codec for the whole file; "auto" takes it from the suffix of ``path``.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "part-0.pb.zst")
    >>> with RecordWriter(path, framing=Framing(sort_id=True, kafka_dump=True)) as writer:
    ...     writer.write(b"one", sort_id=b"user 7")
    ...     writer.write(b"two")
    >>> from monolith.data.records.reader import read_records
    >>> list(read_records(path, framing=Framing(sort_id=True, kafka_dump=True)))
    [b'one', b'two']
    """

    _file: storage.NewFile | None = None  # also for a writer whose constructor failed

    def __init__(
        self, path: str | os.PathLike[str], *, framing: Framing | None = None, compression: Compression = "auto"
    ) -> None:
        self.path = os.fspath(path)
        """The path of the file."""
        self.framing = Framing() if framing is None else framing
        """The header before each record."""
        self.records = 0
        """Records written."""
        compression = codecs.check_compression(compression)
        codec = codecs.codec_of_name(self.path) if compression == "auto" else compression
        self._compressor = compressor(codec)
        self._waiting = bytearray()
        self._file = storage.NewFile(self.path)

    def write(
        self, payload: bytes | bytearray | memoryview, *, sort_id: bytes = b"", source: int | None = None
    ) -> None:
        """Append one record; see ``Framing.frame``.

        Raises:
            ConfigError: The framing has no field for an argument, or the writer is closed.
        """
        if self._file is None:
            raise ConfigError(f"the writer of {self.path} is closed, expected an open one; open a new RecordWriter")
        if self.framing.kind == "bare" and self.records:
            raise ConfigError(f"{self.path}: a bare file contains one record; choose a framing to write more")
        self._waiting += self.framing.frame(payload, sort_id, source)
        self.records += 1
        if len(self._waiting) >= codecs.PIECE_BYTES:
            self._pass_on()

    def write_lot(self, records: _native.Records) -> None:
        """Append every record of a chunk, with its data source if the framing has a field for it."""
        keys = records.source_keys.tolist() if self.framing.lagrangex_header else [None] * len(records)
        for index, key in enumerate(keys):
            self.write(records[index], source=key)

    def close(self) -> None:
        """Write the file to disk under its name. May be called twice."""
        if self._file is None:
            return
        try:
            self._pass_on()
            self._file.write(self._compressor.flush())
            self._file.publish()
        except BaseException:
            self.discard()
            raise
        self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        self.discard()

    def _pass_on(self) -> None:
        assert self._file is not None
        ready = self._compressor.compress(bytes(self._waiting))
        self._waiting.clear()
        if ready:
            self._file.write(ready)

    def discard(self) -> None:
        """Close the writer and remove its bytes: nothing appears under the name. May be called twice."""
        if self._file is not None:
            file, self._file = self._file, None
            file.discard()
