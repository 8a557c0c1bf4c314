"""The fields of LineId: those of the original, and those that a fleet adds at run time.

A LineId describes a sample: user, item, time, actions. The published message has fourteen fields, production messages
have many more. So the schema is open: readers of LineIds take a table of fields. `monolith.data.records.messages` makes
message classes from a table, and the native parser takes ``native()``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias

from monolith.core.errors import ConfigError

__all__ = ["FieldKind", "LineIdField", "LineIdFields"]

FieldKind: TypeAlias = Literal["int", "fixed64", "fixed32", "float", "double", "text"]
"""The wire type of a field, as far as a reader must know it."""

_KINDS: dict[str, FieldKind] = {
    "int32": "int",
    "int64": "int",
    "uint32": "int",
    "uint64": "int",
    "bool": "int",
    "fixed64": "fixed64",
    "sfixed64": "fixed64",
    "fixed32": "fixed32",
    "sfixed32": "fixed32",
    "float": "float",
    "double": "double",
    "string": "text",
    "bytes": "text",
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_NUMBER = (1 << 29) - 1
_RESERVED_NUMBERS = range(19000, 20000)  # protobuf keeps these for itself


@dataclass(frozen=True, kw_only=True, slots=True)
class LineIdField:
    """One field of LineId."""

    name: str
    number: int
    type: str
    """The scalar type as a .proto file spells it: ``int64``, ``string``, ``float``, ..."""
    is_repeated: bool = False
    is_packed: bool = False
    """How a repeated number is written. Both forms are read."""
    default: float = 0
    """The value of an absent number."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"LineId field name {self.name!r} is not an identifier, such as 'video_play_time'")
        if self.type not in _KINDS:
            raise ConfigError(f"LineId field {self.name!r} has type {self.type!r}; known types: {', '.join(_KINDS)}")
        if type(self.number) is not int or not 1 <= self.number <= _MAX_NUMBER:
            raise ConfigError(f"LineId field {self.name!r} has number {self.number!r}, not one of 1..{_MAX_NUMBER}")
        if self.number in _RESERVED_NUMBERS:
            raise ConfigError(
                f"LineId field {self.name!r} has number {self.number}; protobuf reserves 19000..19999, take another"
            )
        if self.is_packed and (not self.is_repeated or self.kind == "text"):
            raise ConfigError(f"LineId field {self.name!r} cannot be packed: only repeated numbers can")
        if self.default and (self.is_repeated or self.kind == "text"):
            raise ConfigError(f"LineId field {self.name!r} cannot have the default {self.default!r}: only numbers can")
        if self.kind in ("int", "fixed64", "fixed32") and self.default != int(self.default):
            raise ConfigError(f"LineId field {self.name!r} is a whole number, its default is {self.default!r}")

    @property
    def kind(self) -> FieldKind:
        """The wire type of the field."""
        return _KINDS[self.type]


@dataclass(frozen=True, slots=True)
class LineIdFields:
    """An immutable table of LineId's fields, in the order of their numbers.

    >>> fields = LineIdFields.standard().extended({"did": (11, "string"), "vids": (163, "repeated int64")})
    >>> fields["vids"].number, "did" in fields, len(fields) - len(LineIdFields.standard())
    (163, True, 2)
    """

    fields: tuple[LineIdField, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", tuple(sorted(self.fields, key=lambda field: field.number)))
        names: dict[str, int] = {}
        numbers: dict[int, str] = {}
        for field in self.fields:
            if field.number in numbers:
                raise ConfigError(
                    f"LineId field {field.name!r} has number {field.number}, which is that of "
                    f"{numbers[field.number]!r}; take another number"
                )
            if field.name in names:
                raise ConfigError(
                    f"LineId field {field.name!r} (number {field.number}) exists already, with number "
                    f"{names[field.name]}; take another name"
                )
            names[field.name] = field.number
            numbers[field.number] = field.name

    @classmethod
    def standard(cls) -> LineIdFields:
        """Return the fields of the published message."""
        return _standard()

    def extended(self, extra: Mapping[str, tuple[int, str] | LineIdField]) -> LineIdFields:
        """Return this table with more fields.

        Args:
            extra: By name, either ``(number, type)``, where the type may be ``"repeated int64"`` (written packed), or
                a whole `LineIdField`.

        Raises:
            ConfigError: A name or number is taken or not allowed, or a type is not known.
        """
        return LineIdFields(self.fields + tuple(_field(name, value) for name, value in extra.items()))

    def native(self) -> list[tuple[str, int, FieldKind, bool, float]]:
        """Return (name, number, kind, is_repeated, default) of each field, as the native parser takes them."""
        return [
            (field.name, field.number, field.kind, field.is_repeated, float(field.default)) for field in self.fields
        ]

    def __getitem__(self, name: str) -> LineIdField:
        for field in self.fields:
            if field.name == name:
                return field
        known = ", ".join(field.name for field in self.fields)
        raise ConfigError(f"LineId has no field {name!r}; known: {known}; add it with LineIdFields.extended")

    def __contains__(self, name: object) -> bool:
        return any(field.name == name for field in self.fields)

    def __iter__(self) -> Iterator[LineIdField]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)


@cache
def _standard() -> LineIdFields:
    return LineIdFields(
        (
            LineIdField(name="uid", number=2, type="fixed64"),
            LineIdField(name="req_time", number=3, type="int64"),
            LineIdField(name="item_id", number=4, type="fixed64"),
            LineIdField(name="actions", number=6, type="int32", is_repeated=True, is_packed=True),
            LineIdField(name="chnid", number=19, type="int64"),
            LineIdField(name="pre_actions", number=23, type="int32", is_repeated=True, is_packed=True),
            LineIdField(name="sample_rate", number=27, type="float", default=1.0),
            LineIdField(name="special_strategies", number=39, type="int32", is_repeated=True),
            LineIdField(name="device_type", number=41, type="string"),
            LineIdField(name="cid", number=48, type="string"),
            LineIdField(name="user_id", number=49, type="string"),
            LineIdField(name="is_draw", number=87, type="bool"),
            LineIdField(name="rank", number=145, type="int32"),
            LineIdField(name="data_source_name", number=235, type="string"),
        )
    )


def _field(name: str, value: tuple[int, str] | LineIdField) -> LineIdField:
    if isinstance(value, LineIdField):
        if value.name != name:
            raise ConfigError(f"LineId field {value.name!r} is listed under the name {name!r}; use one name")
        return value
    try:
        number, spelled = value
        words = spelled.split()
    except (TypeError, ValueError, AttributeError) as exc:
        raise ConfigError(
            f"LineId field {name!r} must be (number, type), such as (11, 'string'); got {value!r}"
        ) from exc
    is_repeated = words[:1] == ["repeated"]
    type_name = " ".join(words[1:] if is_repeated else words)
    return LineIdField(
        name=name,
        number=number,
        type=type_name,
        is_repeated=is_repeated,
        is_packed=is_repeated and _KINDS.get(type_name) not in (None, "text"),
    )
