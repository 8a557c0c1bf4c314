"""``TextFile``: reads files of rows of text in blocks, with exact resume and shares for several readers.

CSV and JSON lines derive from it. Bytes that are appended to a plain file after it was opened are not read. A block
starts at a row and ends behind a row; it is at most ``_BLOCK_BYTES`` long unless one row is longer. The offset of a
block alone decides its end, so that a resumed reader cuts the same blocks. Readers that share a file read every n-th
block. Offsets of compressed files count decompressed bytes. Native parsers turn a block into columns.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, Literal, NoReturn, TypeAlias, get_args

from typing_extensions import override

from monolith import _native
from monolith.core import storage
from monolith.core.errors import ConfigError, DataError, RecordCorrupt, SchemaMismatch
from monolith.data.sources.arrow_columns import TableColumns, load_pyarrow
from monolith.data.sources.parsed_text import Problem, TextField, describe_problem, text_columns, text_fields
from monolith.data.sources.table_files import OpenFile, TableFile, TableRows, open_table_file

__all__ = [
    "SUFFIXES",
    "TextFile",
    "TextStream",
    "TextType",
    "arrow_type",
    "check_types",
    "refuse_text",
    "without_compression",
]

TextType: TypeAlias = Literal["int", "float", "text"]
"""The type of the values of a column of text."""

_BLOCK_BYTES = 1 << 20
_SMALLEST_BLOCK = 1 << 12
_BLOCKS_PER_SHARD = 8
_MOST_ROW_BYTES = 1 << 28

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
        self._ahead = b""  # bytes that were read behind the last block
        self._left: int | None = None  # bytes that may be read; None = all
        self.has_ended = False
        """True if ``take`` has returned the last bytes."""

    def skip_to(self, offset: int, end: int | None = None) -> None:
        """Go to an offset, before the first read. Bytes of a plain file from ``end`` on are not read."""
        if not self.is_compressed:
            self._handle.seek(offset)
            self._left = None if end is None else end - offset
            return
        while offset > 0 and (piece := self._read(min(offset, _BLOCK_BYTES))):
            offset -= len(piece)
        if offset:
            raise DataError(f"{self._path} ends {offset} bytes before the position; restore the file")

    def take(self, size: int, cut: Callable[[bytes, int], int]) -> memoryview:
        """Return at most ``size`` bytes, cut behind a row; empty at the end. A longer row comes alone or with others.

        ``cut(data, size)`` returns the end of the last whole row of the first bytes of ``data``; 0 without one.

        Raises:
            RecordCorrupt: A row is longer than 256 MiB, or the file cannot be read.
        """
        while True:
            if len(self._ahead) < size:
                self._ahead += self._read(size - len(self._ahead))
            data = self._ahead
            if len(data) < size:
                self.has_ended = True
                self._ahead = b""
                return memoryview(data)
            end = cut(data, size)
            if end:
                self._ahead = data[end:]
                return memoryview(data)[:end]
            if size >= _MOST_ROW_BYTES:
                raise RecordCorrupt(
                    f"{self._path} has a row of more than {_MOST_ROW_BYTES} bytes, expected less; close its quote, or "
                    "split the row"
                )
            size *= 2

    def has_more(self) -> bool:
        """Return whether a plain file has bytes behind the end that ``skip_to`` was given, which were all read."""
        self._left = 1
        has_more = bool(self._read(1))
        self._left = 0
        return has_more

    def count_lines(self, offset: int) -> int:
        """Return the number of line ends before an offset, before the first read."""
        lines = 0
        while offset > 0 and (piece := self._read(min(offset, _BLOCK_BYTES))):
            lines += piece.count(b"\n")
            offset -= len(piece)
        return lines

    def close(self) -> None:
        """Close the file."""
        if self.is_compressed:
            self._stream.close()
        self._handle.close()

    def _read(self, size: int) -> bytes:
        try:
            data = storage.read_up_to(self._stream, size if self._left is None else min(size, self._left))
        except (load_pyarrow().ArrowException, OSError) as error:
            raise RecordCorrupt(f"{self._path} cannot be read: {error}; restore the file") from error
        if self._left is not None:
            self._left -= len(data)
        return data


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
            types = self._types_of_columns()
            self._choices = columns.choose(load_pyarrow().schema(types), path)
            chosen = dict.fromkeys(choice.name for choice in self._choices)
            self._fields = text_fields({name: dict(types)[name] for name in chosen}, self._places())
        except BaseException:
            self._stream.close()
            raise
        self._block = 0
        self._rows_before = 0
        self._row = 0
        self._rows: int | None = None  # of the current block
        self._block_columns: list[_native.Column] = []
        self._block_end = self._offset
        self._has_started = False

    # --- the format ---

    @abstractmethod
    def _read_header(self, stream: TextStream) -> int:
        """Read the rows before the data; return the offset behind them."""

    @abstractmethod
    def _types_of_columns(self) -> list[tuple[str, Any]]:
        """Return names and Arrow types of the columns, in the order of the file."""

    @abstractmethod
    def _places(self) -> Mapping[str, int] | None:
        """Return the place of each column in a row; None where names find it."""

    @abstractmethod
    def _cut(self, data: bytes, size: int) -> int:
        """Return the end of the last whole row of the first bytes; 0 without one."""

    @abstractmethod
    def _parse(self, block: memoryview, fields: list[TextField]) -> _native.ParsedText:
        """Return columns of the rows of a block."""

    # --- TableFile ---

    @property
    @override
    def size(self) -> int:
        return self._size

    @property
    @override
    def unit(self) -> str:
        return "bytes"

    @override
    def read(self) -> TableRows | None:
        while True:
            rows = self._load_block() if self._rows is None else self._rows
            if rows is None:
                return None
            if self._row < rows:
                first = self._row
                self._row = min(first + self._batch_rows, rows)
                return TableRows(self._block_columns, first, self._row, self._rows_before + first)
            self._leave_block(rows)

    @override
    def position(self) -> dict[str, int]:
        if self._rows is not None and self._row == self._rows:
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
        if row and row > (self._load_block() or 0):
            raise DataError(f"{self._path} has no row {row} behind byte {offset}; restore the file")
        self._row = row

    @override
    def close(self) -> None:
        self._rows, self._block_columns = None, []
        self._stream.close()

    def _load_block(self) -> int | None:
        """Parse the next block of this shard; return the number of its rows, or None at the end of the file."""
        if not self._has_started:
            self._reopen(self._offset)  # the header has read ahead
        while block := self._take():
            if self._block % self._shards == self._shard:
                parsed = self._parse(block, self._fields)
                if parsed.problem is not None:
                    refuse_text(self._path, self._offset, parsed.problem, self._open_file)
                self._block_columns = text_columns(parsed, self._fields, self._choices)
                self._rows = parsed.rows
                return parsed.rows
            self._leave_block(bytes(block).count(b"\n"))
        return None

    def _take(self) -> memoryview:
        """Return the next block of the file; empty at the end."""
        block = self._stream.take(self._block_bytes, self._cut)
        self._block_end = self._offset + len(block)
        if self._stream.has_ended and not self._stream.is_compressed:
            self._check_end(block)
        return block

    def _check_end(self, block: memoryview) -> None:
        """Refuse a file that was cut, and a last row that a writer had not completed when the file was opened."""
        if self._block_end < self._size:
            raise RecordCorrupt(
                f"{self._path} ends at byte {self._block_end}, expected {self._size} bytes as when it was opened; "
                "restore the file, and write new rows to a new one"
            )
        if block and block[-1] not in b"\r\n" and self._stream.has_more():
            raise RecordCorrupt(
                f"{self._path} has more than {self._size} bytes, expected {self._size} as when it was opened: its last "
                "row was not whole then; write new rows to a new file"
            )

    def _reopen(self, offset: int) -> None:
        self._stream.close()
        self._stream = TextStream(self._path, self._open_file)
        self._stream.skip_to(offset, self._size)
        self._has_started = True

    def _leave_block(self, rows: int) -> None:
        self._rows, self._block_columns = None, []
        self._offset = self._block_end
        self._rows_before += rows
        self._block += 1
        self._row = 0


def refuse_text(path: str, offset: int, problem: Problem, open_file: OpenFile | None = None) -> NoReturn:
    """Raise the error of a block that begins at an offset of a file; the text names file, line, column and value.

    Raises:
        SchemaMismatch: A value does not fit the type of its column.
        RecordCorrupt: A row is malformed.
    """
    stream = TextStream(path, open_file)
    try:
        line = stream.count_lines(offset + problem[1]) + 1
    finally:
        stream.close()
    text = f"{path}, line {line}, {describe_problem(problem)}; correct the file"
    if problem[2]:
        raise SchemaMismatch(f"{text}, or name the types of the columns: column_types")
    raise RecordCorrupt(text)


def _choose_block_bytes(size: int, shards: int, is_compressed: bool) -> int:
    """Return the size of blocks: small enough that every reader of a shared file gets some."""
    if shards == 1:
        return _BLOCK_BYTES
    if is_compressed:
        size *= 2
    return min(_BLOCK_BYTES, max(_SMALLEST_BLOCK, size // (_BLOCKS_PER_SHARD * shards)))
