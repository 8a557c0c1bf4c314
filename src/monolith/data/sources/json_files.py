"""``JsonLinesFormat``: files with one JSON object per line, with the types of their columns declared or inferred.

The fields of the objects are columns. Lists are lists of values. Fields that the first rows lack are not known. The
native parser reads blocks of lines; pyarrow is used for the types of columns and for compressed files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import override

from monolith import _native
from monolith.core.errors import RecordCorrupt
from monolith.data.sources.arrow_columns import TableColumns, load_pyarrow
from monolith.data.sources.parsed_text import TextField, arrow_types
from monolith.data.sources.table_files import OpenFile, TableFile, TableFormat
from monolith.data.sources.text_tables import TextFile, TextStream, TextType, arrow_type, check_types, refuse_text

__all__ = ["JsonLinesFormat", "choose_json_type"]

_SAMPLE_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"


class JsonLinesFormat(TableFormat):
    """Opens files of JSON lines.

    Args:
        first_path: Returns the file whose first rows decide the types of all files.
        types: Types of columns that are declared; a list has the type of its values.
        open_file: Opens a file by its path.

    Raises:
        ConfigError: A type is unknown.
    """

    def __init__(
        self,
        first_path: Callable[[], str],
        types: Mapping[str, TextType] | None = None,
        *,
        open_file: OpenFile | None = None,
    ) -> None:
        load_pyarrow()  # a missing package is an error before the first read
        check_types(types or {})
        self._first_path = first_path
        self._declared = dict(types or {})
        self.open_file = open_file
        self._first_types: dict[str, Any] | None = None

    @override
    def open(self, path: str, columns: TableColumns, *, batch_rows: int, shard: tuple[int, int]) -> TableFile:
        return _JsonLinesFile(path, columns, self, batch_rows=batch_rows, shard=shard)

    def types_of(self, path: str) -> dict[str, Any]:
        """Return the Arrow type of each field of a file; the first file decides."""
        if self._first_types is None:
            self._first_types = self._infer(self._first_path())
        own = self._first_types if path == self._first_path() else self._infer(path)
        return {name: self._first_types.get(name, kind) for name, kind in own.items()}

    def _infer(self, path: str) -> dict[str, Any]:
        stream = TextStream(path, self.open_file)
        try:
            sample = bytes(stream.take(_SAMPLE_BYTES, cut_lines))
        finally:
            stream.close()
        start = len(_BOM) if sample.startswith(_BOM) else 0
        sample = sample[start:]
        if not sample.strip():
            raise RecordCorrupt(f"{path} is empty, expected one JSON object per line")
        fields, problem = _native.infer_json_lines(sample)
        if problem is not None:
            refuse_text(path, start, problem, self.open_file)
        return {name: choose_json_type(kind, self._declared.get(name)) for name, kind in arrow_types(fields).items()}


class _JsonLinesFile(TextFile):
    """One open file of JSON lines."""

    def __init__(
        self, path: str, columns: TableColumns, json_format: JsonLinesFormat, *, batch_rows: int, shard: tuple[int, int]
    ) -> None:
        self._format = json_format
        super().__init__(path, columns, batch_rows=batch_rows, shard=shard, open_file=json_format.open_file)

    @override
    def _read_header(self, stream: TextStream) -> int:
        return len(_BOM) if bytes(stream.take(len(_BOM), lambda _, size: size)) == _BOM else 0

    @override
    def _types_of_columns(self) -> list[tuple[str, Any]]:
        return list(self._format.types_of(self._path).items())

    @override
    def _places(self) -> None:
        return None

    @override
    def _cut(self, data: bytes, size: int) -> int:
        return cut_lines(data, size)

    @override
    def _parse(self, block: memoryview, fields: list[TextField]) -> _native.ParsedText:
        return _native.parse_json_lines(block, fields)


def choose_json_type(kind: Any, declared: TextType | None) -> Any:
    """Return the declared type of a field, or the inferred one; a list has the type of its values."""
    arrow = load_pyarrow()
    is_list = arrow.types.is_list(kind)
    value = kind.value_type if is_list else kind
    if declared is not None:
        value = arrow_type(declared)
    return arrow.list_(value) if is_list else value


def cut_lines(data: bytes, size: int) -> int:
    """Return the end of the last whole line of the first bytes."""
    return data.rfind(b"\n", 0, size) + 1
