"""``CsvFormat``: CSV files, with the types of their columns declared or inferred from the first file.

Empty fields and the words in ``NULLS`` are missing values, except in quotes. Quoted fields may contain line ends.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from typing_extensions import override

from monolith.core.errors import RecordCorrupt
from monolith.data.sources.arrow_columns import Choice, TableColumns, load_pyarrow
from monolith.data.sources.table_files import OpenFile, TableFile, TableFormat
from monolith.data.sources.text_tables import (
    TextFile,
    TextStream,
    TextType,
    arrow_type,
    check_types,
    without_compression,
)

__all__ = ["NULLS", "CsvFormat"]

NULLS = ("", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "\\N")
"""The fields that are missing values."""

_SAMPLE_BYTES = 1 << 20
_OTHER_DELIMITERS = (";", "\t", "|")
_BOM = b"\xef\xbb\xbf"


class CsvFormat(TableFormat):
    """Opens CSV files.

    Args:
        first_path: Returns the file whose first rows decide the types of all files.
        types: Types of columns that are declared.
        delimiter: Between fields; None = a tab for ``.tsv``, else a comma.
        header: Names of the columns, for files without a header.
        open_file: Opens a file by its path.

    Raises:
        ConfigError: A type is unknown.
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
        load_pyarrow("pyarrow.csv")  # a missing package is an error before the first read
        check_types(types or {})
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

    def read_header(self, path: str, stream: TextStream) -> tuple[list[str], int]:
        """Return the names of the columns, and the offset of the first row."""
        first = stream.take(_SAMPLE_BYTES, cut_rows)
        marked = len(_BOM) if first.startswith(_BOM) else 0
        if self._header:
            return self._header, marked
        end = _first_row_end(first)
        text = first[marked:end].decode("utf-8", "replace")
        names = next(csv.reader(io.StringIO(text), delimiter=self.delimiter_of(path)), [])
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

    def parse(self, path: str, block: bytes, names: Sequence[str], types: Mapping[str, Any], chosen: list[str]) -> Any:
        """Return columns of a block of rows as an Arrow table."""
        arrow, reader = load_pyarrow(), load_pyarrow("pyarrow.csv")
        return reader.read_csv(
            arrow.BufferReader(block),
            read_options=reader.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=list(names)),
            parse_options=reader.ParseOptions(
                delimiter=self.delimiter_of(path), newlines_in_values=b'"' in block, invalid_row_handler=None
            ),
            convert_options=reader.ConvertOptions(
                column_types=dict(types),
                include_columns=chosen,
                null_values=list(NULLS),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                check_utf8=False,
            ),
        )

    def _infer(self, path: str) -> dict[str, Any]:
        """Return the types of the columns of the first rows: integers, reals, truth values or text."""
        arrow = load_pyarrow()
        stream = TextStream(path, self.open_file)
        try:
            names, offset = self.read_header(path, stream)
        finally:
            stream.close()
        stream = TextStream(path, self.open_file)
        try:
            stream.skip_to(offset)
            sample = stream.take(_SAMPLE_BYTES, cut_rows)
        finally:
            stream.close()
        known = {name: kind for name, kind in self._declared.items() if name in names}
        try:
            table = self.parse(path, sample, names, known, [])
            types = {}
            for field in table.schema:
                kind = field.type
                if (
                    kind == arrow.float64()
                    and field.name not in known
                    and self._are_integers(path, sample, names, field.name)
                ):
                    kind = arrow.uint64()
                elif kind not in (arrow.int64(), arrow.float64(), arrow.bool_(), arrow.null()):
                    kind = arrow.string()
                types[field.name] = kind
        except arrow.ArrowException as error:
            raise RecordCorrupt(f"{path} cannot be read as CSV: {error}; correct the file, or its delimiter") from error
        return types

    def _are_integers(self, path: str, sample: bytes, names: Sequence[str], name: str) -> bool:
        """Return whether reals are integers of 64 bits without a sign, which Arrow takes for reals."""
        arrow = load_pyarrow()
        try:
            table = self.parse(path, sample, names, {name: arrow.uint64()}, [name])
        except arrow.ArrowException:
            return False
        return bool(table.num_rows > table.column(0).null_count)


class _CsvFile(TextFile):
    """One open CSV file."""

    def __init__(
        self, path: str, columns: TableColumns, csv_format: CsvFormat, *, batch_rows: int, shard: tuple[int, int]
    ) -> None:
        self._format = csv_format
        self._names: list[str] = []
        self._types: dict[str, Any] = {}
        super().__init__(path, columns, batch_rows=batch_rows, shard=shard, open_file=csv_format.open_file)

    @override
    def _read_header(self, stream: TextStream) -> int:
        self._names, offset = self._format.read_header(self._path, stream)
        return offset

    @override
    def _arrow_schema(self) -> Any:
        self._types = self._format.types_of(self._path, self._names)
        return load_pyarrow().schema([(name, self._types[name]) for name in self._names])

    @override
    def _cut(self, block: bytes) -> int:
        return cut_rows(block)

    @override
    def _parse(self, block: bytes, choices: tuple[Choice, ...]) -> Any:
        chosen = list(dict.fromkeys(choice.name for choice in choices))
        types = {name: self._types[name] for name in chosen}
        return self._format.parse(self._path, block, self._names, types, chosen)


def cut_rows(block: bytes) -> int:
    r"""Return the end of the last whole row: behind a line end that is not in quotes.

    >>> cut_rows(b'1,"a\nb"\n2,"c\n'), cut_rows(b"1,a")
    (8, 0)
    """
    end = block.rfind(b"\n") + 1
    quotes = block.count(b'"', 0, end)
    while end and quotes % 2:
        before = block.rfind(b"\n", 0, end - 1) + 1
        quotes -= block.count(b'"', before, end)
        end = before
    return end


def _first_row_end(block: bytes) -> int:
    """Return the end of the first row."""
    end, quotes = 0, 0
    while end < len(block):
        following = block.find(b"\n", end) + 1 or len(block)
        quotes += block.count(b'"', end, following)
        end = following
        if quotes % 2 == 0:
            break
    return end
