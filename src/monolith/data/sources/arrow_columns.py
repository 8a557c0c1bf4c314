"""``TableColumns``: chooses columns of Arrow tables, maps them to features, and passes their memory to the engine.

Only this module imports pyarrow, and only when a table is read. Files and data frames pass a schema and batches of
rows.

A column is a feature, with one value or a list of values per row. A null is a missing value. Some names are special:
``__LABEL__`` and ``instance_weight`` become floats, ``__LINE_ID__`` holds serialized LineIds, and the name of a LineId
field in capitals (``__UID__``, ``__REQ_TIME__``, ``__ACTIONS__``) fills that field. ``WantedColumns`` are the columns
that a dataset needs: a table without one of them is an error.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from monolith import _native
from monolith.core.errors import ConfigError, SchemaMismatch
from monolith.data.records.line_id import LineIdFields
from monolith.data.sources.column_options import ALL_MISSING, ColumnOptions, WantedColumns

__all__ = [
    "Choice",
    "ColumnType",
    "Columns",
    "LineField",
    "TableColumns",
    "load_pyarrow",
    "native_column",
    "native_columns",
]

logger = logging.getLogger(__name__)

ColumnType: TypeAlias = Literal["fid_v1", "fid_v2", "int", "float", "double", "bytes"]
"""The type of a feature's values."""

Columns: TypeAlias = Mapping[str, ColumnType] | Sequence[str] | None
"""Columns with their types; or names, with the types inferred; or None: all columns, types inferred."""

LineField: TypeAlias = tuple[str, int, str, bool, float]
"""A field of LineId: name, number, kind (int, fixed64, fixed32, float, double, text), whether repeated, default."""
"""The fields that every LineId has."""

_LABEL, _WEIGHT, _LINE_ID = "__LABEL__", "instance_weight", "__LINE_ID__"
_TIME_FIELD = "req_time"
_LINE_COLUMN = re.compile(r"__([A-Z][A-Z0-9_]*)__")
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")
"""The name of an index without a name in files of pandas: the number of a row, which no model must learn."""

_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)} | {"bool"}
_WIDE_INTEGERS = {"int64", "uint64"}
_REALS = {"halffloat", "float", "double"}
_TEXTS = {"string", "binary", "large_string", "large_binary", "string_view", "binary_view", "fixed_size_binary"}
_TIMES = {"timestamp", "date32", "date64"}

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
            f"files of columns and data frames need pyarrow ({exc}); install it with: pip install 'monolith[parquet]'"
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

    is_time: bool = False
    """True if the values are times of any type, to be converted to unix seconds."""


class TableColumns:
    """The columns to read from tables, and their types.

    Args:
        columns: The columns and their types; see ``Columns``.
        line_fields: All fields of LineId, when the user has extended it; the standard ones when not given.
        options: Columns that may be missing, that are excluded, and that hold the time.

    Raises:
        ConfigError: A type or a field's kind is not known, or a name is there twice.
    """

    def __init__(
        self,
        columns: Columns = None,
        line_fields: Sequence[LineField] | None = None,
        options: ColumnOptions | None = None,
    ) -> None:
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
        for each in fields:
            if each[2] not in _TAKEN_BY_FIELD:
                known = ", ".join(_TAKEN_BY_FIELD)
                raise ConfigError(f"LineId field {each[0]!r} has the kind {each[2]!r}; it must be one of {known}")
        self._fields = {each[0]: each for each in fields}
        self._options = options or ColumnOptions()
        self.wanted: WantedColumns | None = None
        """The columns that the dataset needs; None = every column that can be a feature."""
        self.missing = 0
        """Columns that tables lack and may lack."""
        self._not_excluded: set[str] = set()
        """Columns of ``exclude`` that a table lacks: each is logged once."""
        self._not_read: set[tuple[str, str]] = set()
        """Tables, and their columns that no feature can have: each is logged once, not for every chunk of a stream."""

    def choose(self, schema: Any, source: str) -> tuple[Choice, ...]:
        """Return the columns to read from a table with that Arrow schema.

        Raises:
            SchemaMismatch: A column is missing or duplicate, or its type does not fit; the text names the table, the
                column and both types.
        """
        counts = Counter(schema.names)
        self._warn_of_absent(schema.names, source)
        names = self._select(schema, source)
        for name in names:
            if counts[name] != 1:
                what = "has no column" if counts[name] == 0 else f"has {counts[name]} columns"
                raise SchemaMismatch(f"{source} {what} {name!r}; its columns are: {', '.join(map(str, schema.names))}")
        if self.wanted is not None:
            self._check_wanted(self.wanted, schema, set(names), source)
        choices = [self._choice(name, schema.field(name).type, source) for name in names]
        filled = [choice.name for choice in choices if choice.line_field is not None]
        time = self._options.time_column
        if time is not None and (time in counts or time not in self._options.allow_missing):
            choices.append(self._time_choice(time, schema, filled, source))
            filled.append(time)
        if filled and _LINE_ID in names:
            raise SchemaMismatch(
                f"{source}: {_LINE_ID!r} and {', '.join(map(repr, filled))} both give the LineId; name the columns to "
                "read with columns=, and leave one of them out"
            )
        return tuple(choices)

    def _warn_of_absent(self, names: Sequence[str], source: str) -> None:
        """Log the columns of ``exclude`` that the table lacks: a misspelt column stays a feature."""
        absent = sorted(self._options.exclude.difference(names, self._not_excluded))
        self._not_excluded.update(absent)
        for name in absent:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            logger.warning("excluded column absent file=%s column=%s nearest=%s", source, name, *near or ["none"])

    def _select(self, schema: Any, source: str) -> list[str]:
        """Return the names to read, in the order of the table or of ``columns``."""
        wanted = self.wanted
        if self._names is not None:
            return [name for name in self._names if name not in self._options.exclude]
        looked_for = frozenset() if wanted is None else wanted.names
        skipped = {*self._options.exclude, *({self._options.time_column} - looked_for)}
        names = [
            name
            for name in schema.names
            if name not in skipped and (name in looked_for or not _PANDAS_INDEX.fullmatch(name))
        ]
        if wanted is None:
            return names
        if wanted.reads_all:
            return [
                name
                for name in names
                if name in looked_for or _LINE_COLUMN.fullmatch(name) or self._can_be_feature(schema, name, source)
            ]
        return [name for name in names if name in looked_for or _LINE_COLUMN.fullmatch(name)]

    def _can_be_feature(self, schema: Any, name: str, source: str) -> bool:
        """Return whether a column can be a feature; log the ones that cannot."""
        if schema.names.count(name) != 1:
            return True  # a duplicate is refused later
        kind = schema.field(name).type
        if _value_type(kind)[0] in {*_INTEGERS, *_REALS, *_TEXTS, "null"}:
            return True
        if (source, name) not in self._not_read:
            self._not_read.add((source, name))
            logger.warning(
                "column not read, no feature can have its type file=%s column=%s type=%s", source, name, kind
            )
        return False

    def _check_wanted(self, wanted: WantedColumns, schema: Any, names: set[str], source: str) -> None:
        absent = [name for name, others in wanted.features.items() if not names.intersection((name, *others))]
        absent += [name for name in wanted.labels if name not in names]
        allowed, time = self._options.allow_missing, self._options.time_column
        refused = [] if ALL_MISSING in allowed else [name for name in absent if name not in allowed]
        if refused:
            raise SchemaMismatch(_describe_missing(source, refused, wanted, schema.names, self._options.exclude))
        if time in allowed and time not in schema.names and time not in absent:
            absent.append(time)
        if absent:
            self.missing += len(absent)
            logger.warning("columns missing file=%s columns=%s", source, ",".join(absent))
        for name in wanted.labels:
            if name in names and _value_type(schema.field(name).type)[0] not in {*_TAKEN_AS_NUMBER, "null"}:
                raise SchemaMismatch(
                    f"{source}: label column {name!r} has type {schema.field(name).type}, expected numbers; "
                    "convert it, for example to 0 and 1"
                )

    def _time_choice(self, name: str, schema: Any, filled: Iterable[str], source: str) -> Choice:
        if name not in schema.names:
            raise SchemaMismatch(
                f"{source} has no column {name!r} for the event time; its columns are: {', '.join(schema.names)}"
            )
        if (count := schema.names.count(name)) > 1:
            raise SchemaMismatch(
                f"{source} has {count} columns {name!r}, expected one for the event time; rename the others"
            )
        value, is_list = _value_type(schema.field(name).type)
        if is_list or value not in {*_TIMES, *_INTEGERS, *_REALS, *_TEXTS, "null"} - {"bool"}:
            raise SchemaMismatch(
                f"{source}: time column {name!r} has type {schema.field(name).type}, expected a timestamp, numbers or "
                "text in ISO 8601"
            )
        if f"__{_TIME_FIELD.upper()}__" in filled:
            raise SchemaMismatch(
                f"{source}: __{_TIME_FIELD.upper()}__ and the time column {name!r} both give the event time; leave one "
                "of them out"
            )
        return Choice(name=name, kind="int", line_field=self._fields[_TIME_FIELD], is_time=True)

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
    return [native_column(choice, batch.column(batch.schema.get_field_index(choice.name))) for choice in choices]


def native_column(choice: Choice, array: Any) -> _native.Column:
    """Return a column of an Arrow array; see ``native_columns``."""
    return _native_column(choice, _unix_seconds(array, choice.name) if choice.is_time else array)


def _unix_seconds(array: Any, name: str) -> Any:
    """Return times as unix seconds; the size of a number tells seconds from milli-, micro- and nanoseconds."""
    pa, compute = load_pyarrow(), load_pyarrow("pyarrow.compute")
    array = _without_runs(array)
    kind = _type_name(array.type)
    try:
        if kind in _TEXTS:
            array = _parse_times(pa, array.cast(pa.string()))
        if kind in _TIMES or kind in _TEXTS:
            microseconds = array.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
            return compute.divide(microseconds, pa.scalar(1_000_000, pa.int64()))
        if kind == "null":
            return array.cast(pa.int64())
        numbers = array.cast(pa.float64(), safe=False)
        for unit, above in ((1e9, 1e17), (1e6, 1e14), (1e3, 1e11)):
            numbers = compute.if_else(compute.greater_equal(numbers, above), compute.divide(numbers, unit), numbers)
        return compute.floor(numbers).cast(pa.int64())
    except pa.ArrowException as error:
        raise SchemaMismatch(f"time column {name!r} has a value that is not a time: {error}; correct it") from error


def _parse_times(pa: Any, texts: Any) -> Any:
    """Return ISO 8601 texts as timestamps; texts without a zone are in UTC."""
    local, zoned = pa.timestamp("us"), pa.timestamp("us", tz="UTC")
    for kind in (local, zoned):
        try:
            return texts.cast(kind)
        except pa.ArrowInvalid:
            continue
    compute = load_pyarrow("pyarrow.compute")
    texts = compute.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1")  # no digits below a microsecond
    has_zone = compute.match_substring_regex(texts, r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$")
    with_zone = compute.if_else(has_zone, texts, pa.scalar(None, texts.type)).cast(zoned).cast(local)
    return compute.coalesce(compute.if_else(has_zone, pa.scalar(None, texts.type), texts).cast(local), with_zone)


def _describe_missing(
    source: str, absent: Sequence[str], wanted: WantedColumns, names: Sequence[str], exclude: frozenset[str]
) -> str:
    """Return the error of columns that a table lacks."""
    listed = ", ".join(map(repr, absent))
    roles = {"label" if name in wanted.labels else "feature" for name in absent}
    role = roles.pop() if len(roles) == 1 else "feature or label"
    text = f"{source} has no column {listed}, expected by the schema as {role}; its columns are: {', '.join(names)}"
    if left_out := [name for name in absent if name in exclude]:
        return f"{text}. {', '.join(map(repr, left_out))} is excluded; include it, or train without it"
    near = difflib.get_close_matches(absent[0], [name for name in names if name not in wanted.names], n=1, cutoff=0.5)
    hint = f" (was it renamed to {near[0]!r}?)" if near else ""
    return f"{text}{hint}; add the column, or allow it to be missing: allow_missing"


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
