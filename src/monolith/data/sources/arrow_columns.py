"""``TableColumns``: chooses columns of Arrow tables, maps them to features, and passes their memory to the engine.

Only this module imports pyarrow, and only when a table is read. Parquet and data frames pass a schema and batches of
rows.

A column is a feature, with one value or a list of values per row. A null is a missing value. Some names are special:
``__LABEL__`` and ``instance_weight`` become floats, ``__LINE_ID__`` holds serialized LineIds, and the name of a LineId
field in capitals (``__UID__``, ``__REQ_TIME__``, ``__ACTIONS__``) fills that field.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from monolith import _native
from monolith.core.errors import ConfigError, SchemaMismatch
from monolith.data.records.line_id import LineIdFields

__all__ = [
    "Choice",
    "ColumnType",
    "Columns",
    "LineField",
    "TableColumns",
    "load_pyarrow",
    "native_columns",
]

ColumnType: TypeAlias = Literal["fid_v1", "fid_v2", "int", "float", "double", "bytes"]
"""The type of a feature's values."""

Columns: TypeAlias = Mapping[str, ColumnType] | Sequence[str] | None
"""Columns with their types; or names, with the types inferred; or None: all columns, types inferred."""

LineField: TypeAlias = tuple[str, int, str, bool, float]
"""A field of LineId: name, number, kind (int, fixed64, fixed32, float, double, text), whether repeated, default."""
"""The fields that every LineId has."""

_LABEL, _WEIGHT, _LINE_ID = "__LABEL__", "instance_weight", "__LINE_ID__"
_LINE_COLUMN = re.compile(r"__([A-Z][A-Z0-9_]*)__")

_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)} | {"bool"}
_WIDE_INTEGERS = {"int64", "uint64"}
_REALS = {"halffloat", "float", "double"}
_TEXTS = {"string", "binary", "large_string", "large_binary", "string_view", "binary_view", "fixed_size_binary"}

_TAKEN: Mapping[str, set[str]] = {
    "fid_v1": _WIDE_INTEGERS,
    "fid_v2": _WIDE_INTEGERS,
    "int": _INTEGERS,
    "float": _REALS,
    "double": _REALS,
    "bytes": _TEXTS,
}
"""The Arrow types that can become each type of column."""

# Labels, weights and rates are often stored as 0 and 1.
_TAKEN_AS_NUMBER = _REALS | _INTEGERS
_TAKEN_BY_FIELD: Mapping[str, set[str]] = {
    "int": _INTEGERS,
    "fixed64": _INTEGERS,
    "fixed32": _INTEGERS,
    "float": _TAKEN_AS_NUMBER,
    "double": _TAKEN_AS_NUMBER,
    "text": _TEXTS,
}

_NATIVE_TYPES = {
    **{name: name for name in (*_INTEGERS, "float", "double")},
    **{"string": "text32", "binary": "text32", "large_string": "text64", "large_binary": "text64"},
}
# Arrow types that the engine does not read directly, and the type they are converted to first.
_TURNED_INTO = {
    "halffloat": "float32",
    "string_view": "large_string",
    "binary_view": "large_binary",
    "fixed_size_binary": "large_binary",
}


def load_pyarrow(module: str = "pyarrow") -> Any:
    """Import pyarrow, or one of its modules.

    Raises:
        ConfigError: It is not installed; the text names the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        raise ConfigError(
            f"Parquet files and data frames need pyarrow ({exc}); install it with: pip install 'monolith[parquet]'"
        ) from exc


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One column that is read."""

    name: str
    """Its name in the table."""

    kind: str
    """The type of its values; unused if the column fills a LineId field."""

    line_field: LineField | None = None
    """The LineId field that it fills."""


class TableColumns:
    """The columns to read from tables, and their types.

    Args:
        columns: The columns and their types; see ``Columns``.
        line_fields: All fields of LineId, when the user has extended it; the standard ones when not given.

    Raises:
        ConfigError: A type or a field's kind is not known, or a name is there twice.
    """

    def __init__(self, columns: Columns = None, line_fields: Sequence[LineField] | None = None) -> None:
        if isinstance(columns, str):
            raise ConfigError(f"columns is {columns!r}, expected a mapping of names to types, or a list of names")
        names = [] if columns is None else list(columns)
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise ConfigError(f"columns contains {', '.join(map(repr, twice))} twice; remove the duplicates")
        if columns is not None and not names:
            raise ConfigError("columns is empty; name at least one column, or leave it out to read all")
        self._types: dict[str, ColumnType] = {}
        if isinstance(columns, Mapping):
            self._types = {name: _checked_type(name, kind) for name, kind in columns.items()}
        self._names: list[str] | None = None if columns is None else names
        fields = LineIdFields.standard().native() if line_fields is None else line_fields
        for field in fields:
            if field[2] not in _TAKEN_BY_FIELD:
                known = ", ".join(_TAKEN_BY_FIELD)
                raise ConfigError(f"LineId field {field[0]!r} has the kind {field[2]!r}; it must be one of {known}")
        self._fields = {field[0]: field for field in fields}

    def choose(self, schema: Any, source: str) -> tuple[Choice, ...]:
        """Return the columns to read from a table with that Arrow schema.

        Raises:
            SchemaMismatch: A column is missing or duplicate, or its type does not fit; the text names the table, the
                column and both types.
        """
        counts = Counter(schema.names)
        wanted = list(schema.names) if self._names is None else self._names
        for name in wanted:
            if counts[name] != 1:
                what = "has no column" if counts[name] == 0 else f"has {counts[name]} columns"
                raise SchemaMismatch(f"{source} {what} {name!r}; its columns are: {', '.join(map(str, schema.names))}")
        choices = tuple(self._choice(name, schema.field(name).type, source) for name in wanted)
        filled = [choice.name for choice in choices if choice.line_field is not None]
        if filled and _LINE_ID in wanted:
            raise SchemaMismatch(
                f"{source}: {_LINE_ID!r} and {', '.join(map(repr, filled))} both give the LineId; name the columns to "
                "read with columns=, and leave one of them out"
            )
        return choices

    def _choice(self, name: str, type_: Any, source: str) -> Choice:
        declared = self._types.get(name)
        field = self._line_field(name, source)
        value, is_list = _value_type(type_)
        taken, wanted = self._accepted_types(name, declared, field)
        if value != "null" and value not in taken:
            if declared is None and field is None and name not in (_LABEL, _WEIGHT, _LINE_ID):
                raise SchemaMismatch(
                    f"{source}: column {name!r} has type {type_}, which no feature can have; name the columns to read "
                    "with columns=, or convert it"
                )
            raise SchemaMismatch(
                f"{source}: column {name!r} has type {type_}, expected {wanted}; {wanted} takes "
                f"{', '.join(sorted(taken))}"
            )
        if is_list and (name == _LINE_ID or (field is not None and not field[3])):
            raise SchemaMismatch(f"{source}: column {name!r} has type {type_}, expected one value per row")
        return Choice(name=name, kind=declared or _infer_type(name, value), line_field=field)

    def _line_field(self, name: str, source: str) -> LineField | None:
        found = _LINE_COLUMN.fullmatch(name)
        if found is None or name in (_LABEL, _LINE_ID):
            return None
        field = self._fields.get(found[1].lower())
        # A column declared in columns= is a feature, as in the original; an undeclared one may be a misspelt field.
        if field is None and name not in self._types:
            known = ", ".join(f"__{known.upper()}__" for known in self._fields)
            raise SchemaMismatch(
                f"{source}: column {name!r} is not a field of LineId; known: {known}; declare it with line_fields=, or "
                "give its type in columns= to read it as a feature"
            )
        return field

    def _accepted_types(self, name: str, declared: ColumnType | None, field: LineField | None) -> tuple[set[str], str]:
        """Return the Arrow types that fit, and the name of the target type."""
        if field is not None:
            return _TAKEN_BY_FIELD[field[2]], f"the LineId field {field[0]!r} ({field[2]})"
        if name in (_LABEL, _WEIGHT):
            return _TAKEN_AS_NUMBER, "float"
        if declared is None:
            return (_TEXTS, "bytes") if name == _LINE_ID else (_INTEGERS | _REALS | _TEXTS, "a feature")
        return _TAKEN[declared], declared


def native_columns(batch: Any, choices: Sequence[Choice]) -> list[_native.Column]:
    """Return the chosen columns of an Arrow record batch.

    Memory is shared; only types that the engine does not read (dictionaries, views, half floats) are copied.
    """
    return [_native_column(choice, batch.column(batch.schema.get_field_index(choice.name))) for choice in choices]


def _checked_type(name: str, kind: str) -> ColumnType:
    if kind not in get_args(ColumnType):
        raise ConfigError(f"column {name!r} has type {kind!r}, expected one of {', '.join(get_args(ColumnType))}")
    must = {_LABEL: "float", _WEIGHT: "float", _LINE_ID: "bytes"}.get(name, kind)
    if kind != must:
        raise ConfigError(f"column {name!r} has type {kind!r}, expected {must}")
    return kind  # type: ignore[return-value]


def _type_name(type_: Any) -> str:
    """Arrow's name of a type without its parameters: "list", "fixed_size_binary", "int64"."""
    return re.split(r"[<\[(]", str(type_), maxsplit=1)[0]


def _is_list(name: str) -> bool:
    return name in ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")


def _value_type(type_: Any) -> tuple[str, bool]:
    """The name of the type of the values, and whether a row has a list of them."""
    plain = _without_wrapping(type_)
    if not _is_list(_type_name(plain)):
        return _type_name(plain), False
    return _type_name(_without_wrapping(plain.value_type)), True


def _without_wrapping(type_: Any) -> Any:
    """The type below an extension, a dictionary or runs."""
    while True:
        if isinstance(getattr(type_, "storage_type", None), load_pyarrow().DataType):
            type_ = type_.storage_type
        elif _type_name(type_) in ("dictionary", "run_end_encoded"):
            type_ = type_.value_type
        else:
            return type_


def _infer_type(name: str, value: str) -> ColumnType:
    if name in (_LABEL, _WEIGHT):
        return "float"
    if value in _INTEGERS:
        return "int"
    if value == "double":  # float32 would round ids above 2^24
        return "double"
    return "float" if value in _REALS else "bytes"


def _native_column(choice: Choice, array: Any) -> _native.Column:
    array = _without_runs(array)
    rows = len(array)
    name = _type_name(array.type)
    if not _is_list(name):
        return _of_values(choice, rows, array)
    if name.endswith("_view"):
        # Rows of a view may lie in any order; they are put one after the other.
        lengths = load_pyarrow("pyarrow.compute").list_value_length(array).fill_null(0).to_numpy()
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
        return _of_values(choice, rows, array.flatten(), ends, wide=True)
    first_row = array.offset
    validity = array.buffers()[0] if array.null_count else None
    if name == "fixed_size_list":
        offsets: Any = np.arange(first_row + rows + 1, dtype=np.int64) * array.type.list_size
        return _of_values(choice, rows, array.values, offsets, validity, first_row, wide=True)
    wide = name == "large_list"
    values, offsets = array.values, array.buffers()[1]
    if _needs_a_copy(values):
        ends = np.frombuffer(offsets, np.int64 if wide else np.int32)[first_row : first_row + rows + 1]
        begin, end = (int(ends[0]), int(ends[-1])) if rows else (0, 0)
        values = values.slice(begin, end - begin)
        # The places before the first row are there only so that the bitmap of the rows may keep its own.
        offsets = np.concatenate([np.zeros(first_row, ends.dtype), ends - begin])
    return _of_values(choice, rows, values, offsets, validity, first_row, wide=wide)


def _of_values(
    choice: Choice,
    rows: int,
    values: Any,
    list_offsets: Any = None,
    list_valid: Any = None,
    first_row: int = 0,
    *,
    wide: bool = False,
) -> _native.Column:
    values = _readable(values)
    name = _type_name(values.type)
    if name == "null" or len(values) == 0:
        return _native.Column(
            choice.name, choice.kind, "nothing", rows=rows, value_count=0, line_field=choice.line_field
        )
    validity, *rest = values.buffers()
    kind = _NATIVE_TYPES[name]
    return _native.Column(
        choice.name,
        choice.kind,
        kind,
        rows=rows,
        value_count=len(values),
        values=rest[-1],
        text_offsets=rest[0] if kind.startswith("text") else None,
        value_valid=validity if values.null_count else None,
        first_value=values.offset,
        list_offsets=list_offsets,
        list_valid=list_valid,
        first_row=first_row,
        wide_list=wide,
        line_field=choice.line_field,
    )


def _needs_a_copy(values: Any) -> bool:
    name = _type_name(values.type)
    return name in _TURNED_INTO or name in ("dictionary", "run_end_encoded") or hasattr(values, "storage")


def _without_runs(array: Any) -> Any:
    """Return the array below an extension, with dictionaries and runs decoded."""
    while True:
        if hasattr(array, "storage"):
            array = array.storage
        elif _type_name(array.type) == "dictionary":
            array = _readable(array.dictionary).take(array.indices)
        elif _type_name(array.type) == "run_end_encoded":
            array = load_pyarrow("pyarrow.compute").run_end_decode(array)
        else:
            return array


def _readable(values: Any) -> Any:
    """Return the values in a type that the engine reads directly."""
    values = _without_runs(values)
    turned = _TURNED_INTO.get(_type_name(values.type))
    return values if turned is None else values.cast(getattr(load_pyarrow(), turned)())
