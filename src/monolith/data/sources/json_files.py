"""``JsonLinesFormat``: files with one JSON object per line, with the types of their columns declared or inferred.

The fields of the objects are columns. Lists are lists of values. Fields that the first rows lack are not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import override

from monolith.core.errors import RecordCorrupt
from monolith.data.sources.arrow_columns import Choice, TableColumns, load_pyarrow
from monolith.data.sources.table_files import OpenFile, TableFile, TableFormat
from monolith.data.sources.text_tables import TextFile, TextStream, TextType, arrow_type, check_types

__all__ = ["JsonLinesFormat", "choose_json_type", "parse_json_lines"]

_SAMPLE_BYTES = 1 << 20


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
        load_pyarrow("pyarrow.json")  # a missing package is an error before the first read
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
        arrow = load_pyarrow()
        stream = TextStream(path, self.open_file)
        try:
            sample = stream.take(_SAMPLE_BYTES, cut_lines)
        finally:
            stream.close()
        if not sample.strip():
            raise RecordCorrupt(f"{path} is empty, expected one JSON object per line")
        try:
            table = parse_json_lines(sample, None)
        except arrow.ArrowException as error:
            raise RecordCorrupt(f"{path} cannot be read as JSON lines: {error}; correct the file") from error
        return {field.name: choose_json_type(field.type, self._declared.get(field.name)) for field in table.schema}


class _JsonLinesFile(TextFile):
    """One open file of JSON lines."""

    def __init__(
        self, path: str, columns: TableColumns, json_format: JsonLinesFormat, *, batch_rows: int, shard: tuple[int, int]
    ) -> None:
        self._format = json_format
        self._types: dict[str, Any] = {}
        super().__init__(path, columns, batch_rows=batch_rows, shard=shard, open_file=json_format.open_file)

    @override
    def _read_header(self, stream: TextStream) -> int:
        return 0

    @override
    def _arrow_schema(self) -> Any:
        self._types = self._format.types_of(self._path)
        return load_pyarrow().schema(list(self._types.items()))

    @override
    def _cut(self, block: bytes) -> int:
        return cut_lines(block)

    @override
    def _parse(self, block: bytes, choices: tuple[Choice, ...]) -> Any:
        names = dict.fromkeys(choice.name for choice in choices)
        return parse_json_lines(block, load_pyarrow().schema([(name, self._types[name]) for name in names]))


def choose_json_type(kind: Any, declared: TextType | None) -> Any:
    """Return the declared type of a field, or the inferred one; a text that looks like a time stays a text."""
    arrow = load_pyarrow()
    is_list = arrow.types.is_list(kind)
    value = kind.value_type if is_list else kind
    if declared is not None:
        value = arrow_type(declared)
    elif arrow.types.is_timestamp(value):
        value = arrow.string()
    return arrow.list_(value) if is_list else value


def cut_lines(block: bytes) -> int:
    """Return the end of the last whole line."""
    return block.rfind(b"\n") + 1


def parse_json_lines(block: bytes, schema: Any) -> Any:
    """Return the fields of JSON lines as an Arrow table: those of ``schema``, or, if it is None, all."""
    arrow, reader = load_pyarrow(), load_pyarrow("pyarrow.json")
    if not block.strip():
        return schema.empty_table()
    options = {} if schema is None else {"explicit_schema": schema, "unexpected_field_behavior": "ignore"}
    return reader.read_json(
        arrow.BufferReader(block),
        read_options=reader.ReadOptions(use_threads=False, block_size=len(block) + 1),
        parse_options=reader.ParseOptions(**options),
    )
