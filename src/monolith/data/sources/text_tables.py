"""``TextFile``: reads files of rows of text in blocks, with exact resume and shares for several readers.

CSV and JSON lines derive from it. A block starts at a row and ends behind a row; it is at most ``_BLOCK_BYTES`` long
unless one row is longer. The offset of a block alone decides its end, so that a resumed reader cuts the same blocks.
Readers that share a file read every n-th block. Offsets of compressed files count decompressed bytes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, BinaryIO, Literal, TypeAlias, get_args

from typing_extensions import override

from monolith.core import storage
from monolith.core.errors import ConfigError, DataError, RecordCorrupt, SchemaMismatch
from monolith.data.sources.arrow_columns import Choice, TableColumns, load_pyarrow
from monolith.data.sources.table_files import OpenFile, TableFile, open_table_file

__all__ = ["SUFFIXES", "TextFile", "TextStream", "TextType", "arrow_type", "check_types", "without_compression"]

TextType: TypeAlias = Literal["int", "float", "text"]
"""The type of the values of a column of text."""

_BLOCK_BYTES = 1 << 20
_SMALLEST_BLOCK = 1 << 12
_BLOCKS_PER_SHARD = 8

SUFFIXES: Mapping[str, str] = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
"""Codec of each suffix of a compressed file."""


def without_compression(path: str) -> str:
    """Return a path without the suffix of its compression.

    >>> without_compression("day.csv.gz"), without_compression("day.csv")
    ('day.csv', 'day.csv')
    """
    stem, dot, suffix = path.rpartition(".")
    return stem if dot and f".{suffix.lower()}" in SUFFIXES else path


def check_types(types: Mapping[str, str]) -> None:
    """Refuse types of columns that are unknown.

    Raises:
        ConfigError: A type is unknown; the text names the column.
    """
    for name, kind in types.items():
        if kind not in get_args(TextType):
            raise ConfigError(f"column {name!r} has type {kind!r}, expected one of {', '.join(get_args(TextType))}")


def arrow_type(kind: str) -> Any:
    """Return the Arrow type of a ``TextType``."""
    arrow = load_pyarrow()
    return {"int": arrow.int64(), "float": arrow.float64(), "text": arrow.string()}[kind]


class TextStream:
    """The decompressed bytes of a file, from an offset on."""

    def __init__(self, path: str, open_file: OpenFile | None = None) -> None:
        self._path = path
        self._handle: BinaryIO = open_table_file(path, open_file)
        self._stream: Any = self._handle
        self.is_compressed = (codec := SUFFIXES.get(f".{path.rpartition('.')[2].lower()}")) is not None
        if self.is_compressed:
            arrow = load_pyarrow()
            self._stream = arrow.CompressedInputStream(arrow.PythonFile(self._handle), codec)
        self._rest = b""  # bytes that were read behind the last block

    def skip_to(self, offset: int) -> None:
        """Go to an offset, before the first read."""
        if not self.is_compressed:
            self._handle.seek(offset)
            return
        while offset > 0 and (piece := self._read(min(offset, _BLOCK_BYTES))):
            offset -= len(piece)
        if offset:
            raise DataError(f"{self._path} ends {offset} bytes before the position; restore the file")

    def take(self, size: int, cut: Any) -> bytes:
        """Return about ``size`` bytes, cut behind a row; empty at the end."""
        block = self._rest + self._read(size - len(self._rest))
        while len(block) >= size:
            end = cut(block)
            if end:
                self._rest = block[end:]
                return block[:end]
            more = self._read(size)
            if not more:
                break
            block += more
        self._rest = b""
        return block

    def close(self) -> None:
        """Close the file."""
        if self.is_compressed:
            self._stream.close()
        self._handle.close()

    def _read(self, size: int) -> bytes:
        try:
            return storage.read_up_to(self._stream, size)
        except (load_pyarrow().ArrowException, OSError) as error:
            raise RecordCorrupt(f"{self._path} cannot be read: {error}; restore the file") from error


class TextFile(TableFile):
    """One open file of rows of text.

    Args:
        path: The file.
        columns: Chooses the columns.
        batch_rows: Rows of a batch, at most.
        shard: (index, count): the share of the blocks of this file.
        open_file: Opens the file by its path.
    """

    def __init__(
        self,
        path: str,
        columns: TableColumns,
        *,
        batch_rows: int,
        shard: tuple[int, int],
        open_file: OpenFile | None = None,
    ) -> None:
        self._path = path
        self._batch_rows = batch_rows
        self._shard, self._shards = shard
        self._open_file = open_file
        self._stream = TextStream(path, open_file)
        try:
            self._size = storage.file_bytes(path)
            self._block_bytes = _choose_block_bytes(self._size, self._shards, self._stream.is_compressed)
            self._offset = self._read_header(self._stream)
            self._choices = columns.choose(self._arrow_schema(), path)
        except BaseException:
            self._stream.close()
            raise
        self._block = 0
        self._rows_before = 0
        self._row = 0
        self._batch: Any = None
        self._block_end = self._offset
        self._has_started = False

    # --- the format ---

    @abstractmethod
    def _read_header(self, stream: TextStream) -> int:
        """Read the rows before the data; return the offset behind them."""

    @abstractmethod
    def _arrow_schema(self) -> Any:
        """Return the Arrow schema of the rows."""

    @abstractmethod
    def _cut(self, block: bytes) -> int:
        """Return the end of the last whole row of a block; 0 without one."""

    @abstractmethod
    def _parse(self, block: bytes, choices: tuple[Choice, ...]) -> Any:
        """Return the chosen columns of the rows of a block as an Arrow table."""

    # --- TableFile ---

    @property
    @override
    def choices(self) -> tuple[Choice, ...]:
        return self._choices

    @property
    @override
    def size(self) -> int:
        return self._size

    @property
    @override
    def unit(self) -> str:
        return "bytes"

    @override
    def read(self) -> tuple[Any, int] | None:
        while True:
            if self._batch is None and not self._load_block():
                return None
            rows = self._batch.num_rows
            if self._row < rows:
                first, count = self._row, min(self._batch_rows, rows - self._row)
                self._row += count
                return self._batch.slice(first, count), self._rows_before + first
            self._leave_block(rows)

    @override
    def position(self) -> dict[str, int]:
        if self._batch is not None and self._row == self._batch.num_rows:
            return {
                "offset": self._block_end,
                "block": self._block + 1,
                "before": self._rows_before + self._row,
                "row": 0,
            }
        return {"offset": self._offset, "block": self._block, "before": self._rows_before, "row": self._row}

    @override
    def seek(self, position: Mapping[str, Any]) -> None:
        offset = int(position["offset"])
        if offset < self._offset or (offset > self._size and not self._stream.is_compressed):
            raise DataError(f"{self._path} has no row at byte {offset}; restore the file")
        self._reopen(offset)
        self._offset = self._block_end = offset
        self._block, self._rows_before = int(position["block"]), int(position["before"])
        row = int(position["row"])
        if row and (not self._load_block() or row > self._batch.num_rows):
            raise DataError(f"{self._path} has no row {row} behind byte {offset}; restore the file")
        self._row = row

    @override
    def close(self) -> None:
        self._batch = None
        self._stream.close()

    def _load_block(self) -> bool:
        """Parse the next block of this shard; return False at the end of the file."""
        if not self._has_started:
            self._reopen(self._offset)  # the header has read ahead
        while block := self._stream.take(self._block_bytes, self._cut):
            self._block_end = self._offset + len(block)
            if self._block % self._shards == self._shard:
                table = self._parse_checked(block)
                self._batch = _as_batch(table)
                return True
            self._leave_block(block.count(b"\n"))
        return False

    def _reopen(self, offset: int) -> None:
        self._stream.close()
        self._stream = TextStream(self._path, self._open_file)
        self._stream.skip_to(offset)
        self._has_started = True

    def _leave_block(self, rows: int) -> None:
        self._batch = None
        self._offset = self._block_end
        self._rows_before += rows
        self._block += 1
        self._row = 0

    def _parse_checked(self, block: bytes) -> Any:
        try:
            return self._parse(block, self._choices)
        except load_pyarrow().ArrowException as error:
            raise SchemaMismatch(
                f"{self._path}, in the rows behind row {self._rows_before} (byte {self._offset}): {error}; correct the "
                "file, or name the types of the columns: column_types"
            ) from error


def _as_batch(table: Any) -> Any:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else load_pyarrow().RecordBatch.from_pylist([], schema=table.schema)


def _choose_block_bytes(size: int, shards: int, is_compressed: bool) -> int:
    """Return the size of blocks: small enough that every reader of a shared file gets some."""
    if shards == 1:
        return _BLOCK_BYTES
    if is_compressed:
        size *= 2
    return min(_BLOCK_BYTES, max(_SMALLEST_BLOCK, size // (_BLOCKS_PER_SHARD * shards)))
