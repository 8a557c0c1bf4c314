"""``CsvFormat``: CSV files, with the types of their columns declared or inferred from the first file.

Empty fields and the words in ``NULLS`` are missing values, except in quotes. Quoted fields may contain line ends. The
native parser reads blocks of rows; pyarrow is used for the types of columns and for compressed files.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from typing_extensions import override

from monolith import _native
from monolith.core.errors import ConfigError, RecordCorrupt
from monolith.data.sources.arrow_columns import TableColumns, load_pyarrow
from monolith.data.sources.parsed_text import TextField, arrow_types
from monolith.data.sources.table_files import OpenFile, TableFile, TableFormat
from monolith.data.sources.text_tables import (
    TextFile,
    TextStream,
    TextType,
    arrow_type,
    check_types,
    refuse_text,
    without_compression,
)

__all__ = ["NULLS", "CsvFormat"]

NULLS = ("", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "\\N")
"""The fields that are missing values."""

_SAMPLE_BYTES = 1 << 20
_HEADER_BYTES = 1 << 14
_OTHER_DELIMITERS = (";", "\t", "|")
_BOM = b"\xef\xbb\xbf"
_WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")


class CsvFormat(TableFormat):
    """Opens CSV files.

    Args:
        first_path: Returns the file whose first rows decide the types of all files.
        types: Types of columns that are declared.
        delimiter: Between fields; None = a tab for ``.tsv``, else a comma.
        header: Names of the columns, for files without a header.
        open_file: Opens a file by its path.

    Raises:
        ConfigError: A type is unknown, or the delimiter is invalid.
    """

    def __init__(
        self,
        first_path: Callable[[], str],
        types: Mapping[str, TextType] | None = None,
        *,
        delimiter: str | None = None,
        header: Sequence[str] = (),
        open_file: OpenFile | None = None,
    ) -> None:
        load_pyarrow()  # a missing package is an error before the first read
        check_types(types or {})
        if delimiter is not None and (len(delimiter.encode()) != 1 or delimiter in '"\r\n'):
            raise ConfigError(f"delimiter is {delimiter!r}, expected one ASCII character such as ';'")
        self._first_path = first_path
        self._declared = {name: arrow_type(kind) for name, kind in (types or {}).items()}
        self._delimiter = delimiter
        self._header = list(header)
        self.open_file = open_file
        self._types: dict[str, Any] | None = None

    @override
    def open(self, path: str, columns: TableColumns, *, batch_rows: int, shard: tuple[int, int]) -> TableFile:
        return _CsvFile(path, columns, self, batch_rows=batch_rows, shard=shard)

    def delimiter_of(self, path: str) -> str:
        """Return the delimiter of a file."""
        return self._delimiter or ("\t" if without_compression(path).lower().endswith(".tsv") else ",")

    def cut_of(self, path: str) -> Callable[[bytes, int], int]:
        """Return the function that finds the end of the last whole row; see ``TextStream.take``."""
        delimiter = self.delimiter_of(path)
        return lambda data, size: _native.cut_csv(memoryview(data)[:size], delimiter)

    def read_header(self, path: str, stream: TextStream) -> tuple[list[str], int]:
        """Return the names of the columns, and the offset of the first row."""
        first = bytes(stream.take(_HEADER_BYTES, self.cut_of(path)))
        if first.startswith(_WIDE_BOMS):
            raise RecordCorrupt(f"{path} is text in UTF-16, expected UTF-8; convert the file")
        marked = len(_BOM) if first.startswith(_BOM) else 0
        if self._header:
            return self._header, marked
        begin = len(first) - len(first[marked:].lstrip(b"\r\n"))  # skip lines without text
        # A character per byte: the reader takes the lines of one row, and the place behind them is the first data row.
        lines = io.StringIO(first[begin:].decode("latin-1"), newline="")
        try:
            names = [_as_utf8(name) for name in next(csv.reader(lines, delimiter=self.delimiter_of(path)), [])]
        except csv.Error as error:
            text = first[begin : begin + 80].decode("utf-8", "replace")
            raise RecordCorrupt(
                f"{path} has the header {text!r}, expected names of columns ({error}); correct the file"
            ) from error
        end = begin + lines.tell()
        if not names:
            raise RecordCorrupt(f"{path} is empty, expected a header with the names of the columns")
        if self._delimiter is None and len(names) == 1:
            for other in _OTHER_DELIMITERS:
                if other in names[0]:
                    raise RecordCorrupt(
                        f"{path} has one column {names[0]!r}, expected columns between {self.delimiter_of(path)!r}; "
                        f"give the delimiter: {other!r}"
                    )
        return names, end

    def types_of(self, path: str, names: Sequence[str]) -> dict[str, Any]:
        """Return the Arrow type of each column of a file."""
        if self._types is None:
            self._types = {**self._infer(self._first_path()), **self._declared}
        if any(name not in self._types for name in names):
            self._types = {**self._infer(path), **self._types}
        return {name: self._types[name] for name in names}

    def _infer(self, path: str) -> dict[str, Any]:
        """Return the types of the columns of the first rows: integers, reals, truth values or text."""
        stream = TextStream(path, self.open_file)
        try:
            names, offset = self.read_header(path, stream)
        finally:
            stream.close()
        stream = TextStream(path, self.open_file)
        try:
            stream.skip_to(offset)
            sample = stream.take(_SAMPLE_BYTES, self.cut_of(path))
        finally:
            stream.close()
        fields, problem = _native.infer_csv(sample, self.delimiter_of(path), len(names))
        if problem is not None:
            refuse_text(path, offset, problem, self.open_file)
        return arrow_types([(name, kind, is_list) for name, (_, kind, is_list) in zip(names, fields, strict=True)])


class _CsvFile(TextFile):
    """One open CSV file."""

    def __init__(
        self, path: str, columns: TableColumns, csv_format: CsvFormat, *, batch_rows: int, shard: tuple[int, int]
    ) -> None:
        self._format = csv_format
        self._names: list[str] = []
        super().__init__(path, columns, batch_rows=batch_rows, shard=shard, open_file=csv_format.open_file)

    @override
    def _read_header(self, stream: TextStream) -> int:
        self._names, offset = self._format.read_header(self._path, stream)
        return offset

    @override
    def _types_of_columns(self) -> list[tuple[str, Any]]:
        types = self._format.types_of(self._path, self._names)
        return [(name, types[name]) for name in self._names]

    @override
    def _places(self) -> Mapping[str, int]:
        return {name: place for place, name in enumerate(self._names)}

    @override
    def _cut(self, data: bytes, size: int) -> int:
        return self._format.cut_of(self._path)(data, size)

    @override
    def _parse(self, block: memoryview, fields: list[TextField]) -> _native.ParsedText:
        return _native.parse_csv(block, self._format.delimiter_of(self._path), len(self._names), fields)


def _as_utf8(characters: str) -> str:
    """Return the text of characters that each stand for a byte."""
    return characters.encode("latin-1").decode("utf-8", "replace")
