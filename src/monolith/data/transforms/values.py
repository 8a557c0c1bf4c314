"""Tests of values: filters on LineId fields and on features, and actions added where a test holds.

=============================  =======================================================================
ops                            fit
=============================  =======================================================================
gt ge eq lt le neq             one number or text; one operand
between                        one number or text; two operands, lower <= value < upper
in not-in                      one number or text; any number of operands
startswith endswith            one text; true for any of the operands
any all diff                   lists of integers or texts: some value is an operand, every operand is a
                               value, no value is an operand
=============================  =======================================================================

Integers are exact in 64 bits. Fields of kind fixed64 and fixed32 (``uid``, ``item_id``) are unsigned and ordered so;
all other integers are signed. Floats are compared in the field's own precision, texts byte by byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from monolith import _native
from monolith.core import fid
from monolith.core.errors import ConfigError, RecordCorrupt
from monolith.data.transforms import _arguments as arguments
from monolith.data.transforms.base import BuildContext, RowTransform

__all__ = ["AddAction", "Comparison", "FeatureType", "FilterByFeatureValue", "FilterByValue", "Operand"]

Comparison: TypeAlias = Literal[
    "gt", "ge", "eq", "lt", "le", "neq", "between", "in", "not-in", "any", "all", "diff", "startswith", "endswith"
]
Operand: TypeAlias = int | float | str | bytes | Sequence[int] | Sequence[float] | Sequence[str] | Sequence[bytes]
FeatureType: TypeAlias = Literal["int64", "float", "double", "bytes", "fid"]

_Parts: TypeAlias = tuple[list[int], list[float], list[bytes]]
_OPS: tuple[str, ...] = get_args(Comparison)
_ORDERED = ("gt", "ge", "lt", "le", "between")
_KINDS_OF_TYPES = {"int64": "int", "float": "float", "double": "double", "bytes": "text", "fid": "fixed64"}


@dataclass(frozen=True, kw_only=True)
class FilterByValue(RowTransform):
    """Keep rows in which a LineId field passes a test."""

    field_name: str
    """Any field of LineId, those added by the user included."""
    op: Comparison
    operand: Operand | None = None
    """One value or a list, of the field's kind."""
    keep_empty: bool = False
    """Whether rows without the field stay. A field with a default that is not 0 (sample_rate) is never absent."""
    operand_filepath: str | None = None
    """A file with one serialized FilterValues message: the operands, in place of ``operand``."""

    def __post_init__(self) -> None:
        _check_test(self)
        arguments.flag(self, "keep_empty")

    def build_rule(self, context: BuildContext) -> _native.RowRule:
        """Make the native rule; reads the operand file."""
        line_field = context.line_field(self.field_name)
        parts = _operands(self, line_field[2])
        return _native.filter_by_value(line_field, self.op, *parts, self.keep_empty)


@dataclass(frozen=True, kw_only=True)
class FilterByFeatureValue(RowTransform):
    """Keep rows in which a feature passes a test.

    Ops on one value want the feature to have exactly one; any, all and diff take any number.
    """

    field_name: str
    """The feature."""
    op: Comparison
    operand: Operand | None = None
    field_type: FeatureType | None = None
    """The type of the feature's values. None: by the operands, int64 for ints, float for floats, bytes for texts."""
    keep_empty: bool = False
    """Whether rows stay that lack the feature, or in which it has another type or the wrong number of values."""
    operand_filepath: str | None = None
    """A file with one serialized FilterValues message: the operands, in place of ``operand``."""

    def __post_init__(self) -> None:
        _check_test(self)
        arguments.flag(self, "keep_empty")
        types = get_args(FeatureType)
        if self.field_type is not None and self.field_type not in types:
            raise ConfigError(f"FilterByFeatureValue.field_type is {self.field_type!r}; use one of: {', '.join(types)}")

    def build_rule(self, context: BuildContext) -> _native.RowRule:
        """Make the native rule; reads the operand file."""
        given = _given_operands(self)
        kind = self.field_type or _type_of(given)
        parts = _split(self, given, _KINDS_OF_TYPES[kind])
        column = context.columns.want(self.field_name)
        return _native.filter_by_feature_value(self.field_name, column, kind, self.op, *parts, self.keep_empty)


@dataclass(frozen=True, kw_only=True)
class AddAction(RowTransform):
    """Append ``action`` to LineId.actions of the rows in which a LineId field passes a test; keep every row."""

    field_name: str
    op: Comparison
    operand: Operand
    action: int

    def __post_init__(self) -> None:
        _check_test(self)
        arguments.whole(self, "action")

    def build_rule(self, context: BuildContext) -> _native.RowRule:
        """Make the native rule."""
        line_field = context.line_field(self.field_name)
        return _native.add_action(line_field, self.op, *_operands(self, line_field[2]), self.action)


_Test: TypeAlias = FilterByValue | FilterByFeatureValue | AddAction


def _check_test(test: _Test) -> None:
    name = type(test).__name__
    arguments.text(test, "field_name")
    if test.op not in _OPS:
        raise ConfigError(f"{name}.op is {test.op!r}; use one of: {', '.join(_OPS)}")
    if test.operand is not None:
        values = _as_tuple(test.operand)
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float | str | bytes):
                raise ConfigError(f"{name}.operand has {value!r}; give numbers or texts")
        arguments.set_field(test, "operand", values)
    path = _operand_file(test)
    if test.operand and path:
        raise ConfigError(f"{name} has both operand and operand_filepath; give one")
    if not test.operand and not path:
        raise ConfigError(f"{name} has no operand; give at least one value, or operand_filepath where there is one")


def _operand_file(test: _Test) -> str | None:
    return None if isinstance(test, AddAction) else test.operand_filepath


def _as_tuple(operand: object) -> tuple[object, ...]:
    if isinstance(operand, str | bytes) or not isinstance(operand, Iterable):
        return (operand,)
    return tuple(item.item() if hasattr(item, "item") else item for item in operand)


def _given_operands(test: _Test) -> tuple[object, ...]:
    file = _operand_file(test)
    if file is None:
        return _as_tuple(test.operand)
    path = Path(file)
    try:
        reals, ints, texts = _native.read_filter_values(path.read_bytes())
    except OSError as exc:
        raise ConfigError(f"{type(test).__name__}.operand_filepath {str(path)!r} cannot be read: {exc}") from exc
    except RecordCorrupt as exc:
        raise RecordCorrupt(f"{path}: {exc}") from exc
    values: tuple[object, ...] = (*reals, *ints, *texts)
    if not values:
        raise ConfigError(f"{type(test).__name__}.operand_filepath {str(path)!r} holds no operands")
    return values


def _operands(test: _Test, kind: str) -> _Parts:
    return _split(test, _given_operands(test), kind)


def _split(test: _Test, values: tuple[object, ...], kind: str) -> _Parts:
    """Put operands into the list that the kind of the value wants; refuse those of another kind."""
    where = f"{type(test).__name__} on {test.field_name!r}"
    ints: list[int] = []
    reals: list[float] = []
    texts: list[bytes] = []
    for value in values:
        if kind == "text" and isinstance(value, str | bytes):
            texts.append(value.encode() if isinstance(value, str) else value)
        elif kind in ("float", "double") and isinstance(value, int | float):
            reals.append(float(value))
        elif kind in ("int", "fixed64", "fixed32") and isinstance(value, int):
            ints.append(_int_operand(where, test.op, kind, value))
        else:
            wanted = {"text": "texts", "float": "numbers", "double": "numbers"}.get(kind, "whole numbers")
            raise ConfigError(f"{where}: the operand {value!r} does not fit; the value is compared with {wanted}")
    if test.op == "between" and len(values) == 2 and not values[0] < values[1]:  # type: ignore[operator]
        raise ConfigError(f"{where}: between {values[0]!r} and {values[1]!r} is nothing; give the lower bound first")
    return ints, reals, texts


def _int_operand(where: str, op: str, kind: str, value: int) -> int:
    if kind == "int":
        if not -(1 << 63) <= value < 1 << 63:
            raise ConfigError(f"{where}: the operand {value} does not fit 64 bits with a sign")
        return value
    if op in _ORDERED and value < 0:
        raise ConfigError(f"{where}: the value is unsigned, so {op!r} cannot take the operand {value}")
    return fid.as_signed(value)


def _type_of(values: tuple[object, ...]) -> FeatureType:
    if all(isinstance(value, str | bytes) for value in values):
        return "bytes"
    return "int64" if all(isinstance(value, int) for value in values) else "float"
