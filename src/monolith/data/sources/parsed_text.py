"""Columns of parsed text: types between Arrow and the native parser, columns of a parsed block, and its errors.

The native parser returns columns in the layout of Arrow. ``TableColumns`` chooses columns by an Arrow schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from monolith import _native
from monolith.data.sources.arrow_columns import Choice, load_pyarrow, native_column

__all__ = ["Problem", "TextField", "arrow_types", "describe_problem", "text_columns", "text_fields"]

TextField: TypeAlias = tuple[str, str, bool, int]
"""A field for the native parser: name, type, whether a list, place in the row."""

Problem: TypeAlias = tuple[int, int, str, bytes, str]
"""The first error of a block: row, byte of the block, column (empty: the whole row), value, reason."""

_COLUMN_TYPES = {"bool": "bool", "int64": "int64", "uint64": "uint64", "double": "double", "text": "text64"}


def arrow_types(fields: Sequence[tuple[str, str, bool]]) -> dict[str, Any]:
    """Return the Arrow types of inferred fields."""
    arrow = load_pyarrow()
    singles = {
        "null": arrow.null(),
        "bool": arrow.bool_(),
        "int64": arrow.int64(),
        "uint64": arrow.uint64(),
        "double": arrow.float64(),
        "text": arrow.string(),
        "nested": arrow.struct([]),
    }
    return {name: arrow.list_(singles[kind]) if is_list else singles[kind] for name, kind, is_list in fields}


def text_fields(types: Mapping[str, Any], places: Mapping[str, int] | None = None) -> list[TextField]:
    """Return the fields of columns with Arrow types, for the native parser."""
    names = {"string": "text", "struct<>": "nested"}
    fields = []
    for name, kind in types.items():
        is_list = load_pyarrow().types.is_list(kind)
        single = str(kind.value_type if is_list else kind)
        fields.append((name, names.get(single, single), is_list, 0 if places is None else places[name]))
    return fields


def text_columns(
    parsed: _native.ParsedText, fields: Sequence[TextField], choices: Sequence[Choice]
) -> list[_native.Column]:
    """Return the chosen columns of a parsed block; they share its memory."""
    places = {field[0]: place for place, field in enumerate(fields)}
    return [_column(parsed, places[choice.name], choice) for choice in choices]


def _column(parsed: _native.ParsedText, place: int, choice: Choice) -> _native.Column:
    kind, count, values, text_offsets, valid, list_offsets, list_valid = parsed.column(place)
    if count == 0:
        return _native.Column(
            choice.name, choice.kind, "nothing", rows=parsed.rows, value_count=0, line_field=choice.line_field
        )
    if choice.is_time:
        return native_column(choice, _arrow_array(kind, count, values, text_offsets, valid))
    return _native.Column(
        choice.name,
        choice.kind,
        _COLUMN_TYPES[kind],
        rows=parsed.rows,
        value_count=count,
        values=values,
        text_offsets=text_offsets,
        value_valid=valid,
        list_offsets=list_offsets,
        list_valid=list_valid,
        wide_list=list_offsets is not None,
        line_field=choice.line_field,
    )


def _arrow_array(kind: str, count: int, values: Any, text_offsets: Any, valid: Any) -> Any:
    arrow = load_pyarrow()
    if kind == "text":
        type_, buffers = arrow.large_string(), [valid, text_offsets, b"" if values is None else values]
    else:
        type_, buffers = arrow_types([("", kind, False)])[""], [valid, values]
    return arrow.Array.from_buffers(type_, count, [None if each is None else arrow.py_buffer(each) for each in buffers])


def describe_problem(problem: Problem) -> str:
    """Return the error of a block, without its place."""
    _, _, column, value, reason = problem
    text = value.decode("utf-8", "backslashreplace")
    return f"column {column!r}: value is {text!r}, {reason}" if column else f"{reason}; the text is {text!r}"
