"""Checks of the arguments of transforms: types and ranges. Every error names the field, the value and the remedy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, cast

from monolith.core import fid
from monolith.core.errors import ConfigError

__all__ = [
    "Ints",
    "set_field",
    "ints",
    "is_whole",
    "is_name",
    "is_mapping",
    "whole",
    "number",
    "rate",
    "flag",
    "text",
    "wholes",
    "numbers",
    "fids",
    "slot",
    "split_pairs",
    "whole_of",
    "number_of",
]

Ints: TypeAlias = Sequence[int] | str
"""Whole numbers, or their text with commas between: ``[2, 7]`` or ``"2,7"``."""

_INT64 = range(-(1 << 63), 1 << 63)


def set_field(owner: object, field: str, value: object) -> None:
    """Give a field of a frozen dataclass its normal form."""
    object.__setattr__(owner, field, value)


def ints(value: Ints) -> Sequence[int]:
    """Return a field that ``wholes`` or ``fids`` has put into its normal form."""
    return cast("tuple[int, ...]", value)


def is_whole(value: object) -> bool:
    """Return True for an ``int`` that is not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_name(value: object) -> bool:
    """Return True for a non-empty ``str``."""
    return isinstance(value, str) and value != ""


def is_mapping(value: object) -> bool:
    """Return True for a mapping."""
    return isinstance(value, Mapping)


def whole(owner: object, field: str, *, at_least: int = -(1 << 63)) -> int:
    """Refuse a field that is not an ``int`` of at least ``at_least``."""
    value = getattr(owner, field)
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least or value not in _INT64:
        bound = f" of at least {at_least}" if at_least > _INT64[0] else ""
        raise ConfigError(f"{_label(owner, field)} is {value!r}; give a whole number{bound}")
    return value


def number(owner: object, field: str, *, at_least: float = -math.inf, above: float = -math.inf) -> float:
    """Refuse a field that is not a finite number of at least ``at_least`` and more than ``above``."""
    value = getattr(owner, field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{_label(owner, field)} is {value!r}; give a finite number")
    if value < at_least or value <= above:
        bound = f"above {above:g}" if value <= above else f"of at least {at_least:g}"
        raise ConfigError(f"{_label(owner, field)} is {value!r}; give a number {bound}")
    return float(value)


def rate(owner: object, field: str) -> float:
    """Refuse a field that is not a number from 0 to 1."""
    value = getattr(owner, field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigError(f"{_label(owner, field)} is {value!r}; give a number from 0 to 1")
    return float(value)


def flag(owner: object, field: str) -> None:
    """Refuse a field that is not True or False."""
    value = getattr(owner, field)
    if not isinstance(value, bool):
        raise ConfigError(f"{_label(owner, field)} is {value!r}; give True or False")


def text(owner: object, field: str, *, may_be_empty: bool = False) -> str:
    """Refuse a field that is not a ``str`` with something in it."""
    value = getattr(owner, field)
    if not isinstance(value, str) or not (value or may_be_empty):
        raise ConfigError(f"{_label(owner, field)} is {value!r}; give a name")
    return value


def slot(owner: object, field: str) -> int:
    """Refuse a field that is not a slot of v2 ids."""
    value = getattr(owner, field)
    _check_slot(_label(owner, field), value)
    return int(value)


def wholes(owner: object, field: str, *, is_needed: bool = False) -> tuple[int, ...]:
    """Turn a field into a tuple of ints; the text form and None (nothing) are taken too."""
    value = getattr(owner, field)
    where = _label(owner, field)
    if isinstance(value, str):
        value = [whole_of(where, part) for part in value.split(",") if part.strip()]
    items = tuple(_items(where, value))
    for item in items:
        if isinstance(item, bool) or not hasattr(item, "__index__") or item.__index__() not in _INT64:
            raise ConfigError(f"{where} has {item!r}; give whole numbers")
    result = tuple(int(item) for item in items)  # type: ignore[call-overload]
    if is_needed and not result:
        raise ConfigError(f"{where} is empty; give at least one number")
    set_field(owner, field, result)
    return result


def numbers(owner: object, field: str, *, is_needed: bool = False) -> tuple[float, ...]:
    """Turn a field into a tuple of finite floats."""
    where = _label(owner, field)
    items = tuple(_items(where, getattr(owner, field)))
    for item in items:
        if isinstance(item, bool) or not isinstance(item, int | float) or not math.isfinite(item):
            raise ConfigError(f"{where} has {item!r}; give finite numbers")
    result = tuple(float(item) for item in items)  # type: ignore[arg-type]
    if is_needed and not result:
        raise ConfigError(f"{where} is empty; give at least one number")
    set_field(owner, field, result)
    return result


def fids(owner: object, field: str) -> tuple[int, ...]:
    """Turn a field into a tuple of ids as int64 bit patterns; unsigned ids and the text form are taken too."""
    value = getattr(owner, field)
    where = _label(owner, field)
    if isinstance(value, str):
        value = [whole_of(where, part) for part in value.split(",") if part.strip()]
    items = tuple(_items(where, value))
    for item in items:
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            raise ConfigError(f"{where} has {item!r}; give fids as whole numbers")
    result = tuple(fid.as_signed(int(item)) for item in items)  # type: ignore[call-overload]
    set_field(owner, field, result)
    return result


def split_pairs(where: str, value: str, parts: range) -> list[list[str]]:
    """Split ``"a:b,c:d"`` into ``[["a", "b"], ["c", "d"]]``; refuse another number of parts than ``parts`` allows."""
    pairs = [[part.strip() for part in item.split(":")] for item in value.split(",") if item.strip()]
    for pair in pairs:
        if len(pair) not in parts:
            shape = " or ".join(":".join("abcd"[:count]) for count in parts)
            raise ConfigError(f"{where} has {':'.join(pair)!r}; items look like {shape}")
    return pairs


def whole_of(where: str, value: str) -> int:
    """Read a whole number."""
    try:
        return int(value.strip())
    except ValueError:
        raise ConfigError(f"{where} has {value.strip()!r}; give a whole number") from None


def number_of(where: str, value: str) -> float:
    """Read a finite number."""
    try:
        result = float(value.strip())
    except ValueError:
        result = math.nan
    if not math.isfinite(result):
        raise ConfigError(f"{where} has {value.strip()!r}; give a number")
    return result


def _check_slot(where: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < fid.V2_SLOTS:
        raise ConfigError(f"{where} is {value!r}; slots are 0 to {fid.V2_SLOTS - 1}")


def _items(where: str, value: object) -> Iterable[object]:
    if value is None:
        return ()
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise ConfigError(f"{where} is {value!r}; give a list")
    return value


def _label(owner: object, field: str) -> str:
    return f"{type(owner).__name__}.{field}"
