"""``JsonMessagesSource``: reads messages that are JSON objects, such as those of a Kafka topic, as rows of columns.

A field gets its type when it first has a value, or from ``column_types``; a later value of another type is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from monolith import _native
from monolith.core.errors import SchemaMismatch
from monolith.data.records.line_id import LineIdFields
from monolith.data.sources.arrow_columns import load_pyarrow
from monolith.data.sources.base import Source
from monolith.data.sources.column_options import ColumnOptions, WantedColumns
from monolith.data.sources.json_files import choose_json_type
from monolith.data.sources.message_rows import MessageRowsSource
from monolith.data.sources.parsed_text import Problem, arrow_types, describe_problem, text_columns, text_fields
from monolith.data.sources.text_tables import TextType, check_types

__all__ = ["JsonMessagesSource"]

_SPECIAL = re.compile(rb'"(__[A-Z][A-Z0-9_]*__)"')
"""A field that may be the label or fill a field of LineId."""
_NEVER_ESCAPED = re.compile(r"[\w .:-]*", re.ASCII)
"""A name that every writer of JSON spells as it is."""


class JsonMessagesSource(MessageRowsSource):
    """Rows of JSON messages.

    Args:
        messages: Delivers the messages; a chunk becomes one record of rows.
        column_types: Types of fields; others by their first values.
        options: Fields that are excluded, and the field of the event time.
        skip_corrupt: Skip and count messages that are not JSON objects, instead of raising.

    Raises:
        ConfigError: A type is unknown.
    """

    def __init__(
        self,
        messages: Source,
        column_types: Mapping[str, TextType] | None = None,
        *,
        options: ColumnOptions | None = None,
        skip_corrupt: bool = False,
    ) -> None:
        super().__init__(messages, options, skip_corrupt=skip_corrupt)
        check_types(column_types or {})
        self._declared = dict(column_types or {})
        self._types: dict[str, Any] = {}
        fields = {field[0] for field in LineIdFields.standard().native()}
        if self._options.time_column is not None:
            fields.discard("req_time")
        self._special_names = {"__LABEL__", *(f"__{name.upper()}__" for name in fields)}

    @property
    @override
    def _format(self) -> str:
        return "JSON"

    def _select(self, messages: _native.Records) -> dict[int, bytes]:
        """Return the messages that look like JSON objects, one line each, by their place in the chunk."""
        payloads = {}
        for index in range(len(messages)):
            payload = messages[index].strip()
            if not (payload.startswith(b"{") and payload.endswith(b"}")):
                self._refuse(messages, index, "it is not an object")
                continue
            payloads[index] = payload.replace(b"\n", b" ").replace(b"\r", b" ")
        return payloads

    @override
    def _encode(self, messages: _native.Records) -> _native.Records | None:
        payloads = self._select(messages)
        while payloads:
            block = b"\n".join(payloads.values()) + b"\n"
            schema, problem = self._schema_of(block)
            if problem is None:
                choices = self._columns.choose(schema, messages.source)
                fields = text_fields({choice.name: schema.field(choice.name).type for choice in choices})
                parsed = _native.parse_json_lines(block, fields)
                problem = parsed.problem
                if problem is None:
                    columns = text_columns(parsed, fields, choices)
                    first = int(messages.offsets[0])
                    return _native.encode_columns(columns, 0, parsed.rows, messages.source, first)
            self._handle_problem(problem, payloads, messages)
        return None

    def _handle_problem(self, problem: Problem, payloads: dict[int, bytes], messages: _native.Records) -> None:
        """Remove a corrupt message from the payloads, or raise."""
        index = list(payloads)[problem[0]]
        if problem[2]:
            raise SchemaMismatch(
                f"{messages.source}, offset {int(messages.offsets[index])}: {describe_problem(problem)}; correct the "
                "message, or name the types of the fields: column_types"
            )
        self._refuse(messages, index, describe_problem(problem))
        del payloads[index]

    def _schema_of(self, block: bytes) -> tuple[Any, Problem | None]:
        """Return the fields to read, and the first error; new fields get the type of their first values."""
        arrow = load_pyarrow()
        wanted = self._columns.wanted
        names = None if wanted is None or wanted.reads_all else self._names_of(wanted, block)
        time = self._options.time_column
        if names is None or any(name not in self._types and _may_have(block, name) for name in names):
            fields, problem = _native.infer_json_lines(block)
            if problem is not None:
                return None, problem
            for name, inferred in arrow_types(fields).items():
                kind = choose_json_type(inferred, self._declared.get(name))
                if not _is_unknown(kind):
                    self._types.setdefault(name, kind)
        chosen = dict(self._types)
        if names is not None:
            chosen = {name: self._types[name] for name in names if name in self._types}
        chosen |= dict.fromkeys(self._absent(chosen), arrow.null())
        if time is not None:
            chosen.setdefault(time, arrow.null())
        return arrow.schema(list(chosen.items())), None

    def _names_of(self, wanted: WantedColumns, block: bytes) -> set[str]:
        """Return the fields that the dataset looks for, with the label and the LineId fields of the block."""
        special = {name.decode() for name in _SPECIAL.findall(block)} & self._special_names
        time = self._options.time_column
        return wanted.names | special | (set() if time is None else {time})


def _is_unknown(kind: Any) -> bool:
    types = load_pyarrow().types
    return bool(types.is_null(kind) or (types.is_list(kind) and types.is_null(kind.value_type)))


def _may_have(block: bytes, name: str) -> bool:
    """Return whether a block may have a field; a writer may escape any character of a name."""
    return name.encode() in block or (b"\\" in block and not _NEVER_ESCAPED.fullmatch(name))
