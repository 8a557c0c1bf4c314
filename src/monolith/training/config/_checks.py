"""Checks that the sections share. Each error names the section, the field as users write it, the value, the remedy."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
from collections.abc import Iterable, Mapping

from monolith.core.config_sections import flat_name, flat_value
from monolith.core.errors import ConfigError

__all__: list[str] = []


def label(owner: object, field: str) -> str:
    """Return a field and its value for an error: ``RuntimeConfig.seed is 'x'``; times in the unit that users write."""
    return f"{type(owner).__name__}.{flat_name(type(owner), field)} is {flat_value(owner, field)!r}"


def check_whole(owner: object, *fields: str, at_least: int = 0, at_most: int | None = None) -> None:
    """Refuse fields that are neither None (where they allow it) nor an ``int`` within the bounds."""
    upper = math.inf if at_most is None else at_most
    for field in fields:
        value = getattr(owner, field)
        if _is_left_out(owner, field):
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= upper:
            bounds = f"of at least {at_least}" if at_most is None else f"from {at_least} to {at_most}"
            raise ConfigError(f"{label(owner, field)}; give a whole number {bounds}")


def check_number(
    owner: object, *fields: str, at_least: float = -math.inf, above: float = -math.inf, at_most: float = math.inf
) -> None:
    """Refuse fields that are neither None (where they allow it) nor a finite number within the bounds."""
    for field in fields:
        value = getattr(owner, field)
        if _is_left_out(owner, field):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigError(f"{label(owner, field)}; give a finite number")
        if value < at_least:
            raise ConfigError(f"{label(owner, field)}; give a number of at least {at_least:g}")
        if value <= above:
            raise ConfigError(f"{label(owner, field)}; give a number above {above:g}")
        if value > at_most:
            raise ConfigError(f"{label(owner, field)}; give a number of at most {at_most:g}")


def check_bool(owner: object, *fields: str) -> None:
    """Refuse fields that are neither None (where they allow it) nor True or False."""
    for field in fields:
        if not isinstance(getattr(owner, field), bool) and not _is_left_out(owner, field):
            raise ConfigError(f"{label(owner, field)}; give True or False")


def check_text(owner: object, *fields: str) -> None:
    """Refuse fields that are neither None (where they allow it) nor text with a visible character."""
    for field in fields:
        value = getattr(owner, field)
        if not _is_left_out(owner, field) and (not isinstance(value, str) or not value.strip()):
            raise ConfigError(f"{label(owner, field)}; give text, or leave it out")


def check_names(owner: object, field: str) -> None:
    """Refuse a field that is not a tuple of names; a list becomes one."""
    value = getattr(owner, field)
    if isinstance(value, list):
        value = tuple(value)
        object.__setattr__(owner, field, value)
    if not isinstance(value, tuple) or not all(isinstance(name, str) and name for name in value):
        raise ConfigError(f"{label(owner, field)}; give a sequence of names, such as ('a', 'b')")


def check_choice(owner: object, field: str, choices: Iterable[str]) -> None:
    """Refuse a field that is neither None (where it allows that) nor one of ``choices``."""
    known = list(choices)
    value = getattr(owner, field)
    if _is_left_out(owner, field) or (isinstance(value, str) and value in known):
        return
    near = difflib.get_close_matches(str(value), known, n=1)
    remedy = f"did you mean {near[0]!r}?" if near else f"give one of {', '.join(map(repr, known))}"
    raise ConfigError(f"{label(owner, field)}; {remedy}")


def check_mapping(owner: object, field: str, *, text_values: bool = False) -> None:
    """Refuse a field that is neither None (where it allows that) nor a mapping from names."""
    value = getattr(owner, field)
    if _is_left_out(owner, field):
        return
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{label(owner, field)}; give a mapping whose keys are names")
    if text_values and not all(isinstance(other, str) for other in value.values()):
        raise ConfigError(f"{label(owner, field)}; give a mapping from names to names")


def check_path(owner: object, field: str) -> None:
    """Refuse a field that is neither None (where it allows that) nor a path or URL; keep it as text."""
    value = getattr(owner, field)
    if _is_left_out(owner, field):
        return
    if not isinstance(value, str | os.PathLike) or not isinstance(path := os.fspath(value), str) or not path:
        raise ConfigError(f"{label(owner, field)}; give a path")
    object.__setattr__(owner, field, path)


def refuse_both(owner: object, first: str, second: str) -> None:
    """Refuse two settings that exclude each other."""
    if getattr(owner, first) is not None and getattr(owner, second) is not None:
        raise ConfigError(
            f"{label(owner, first)} and {flat_name(type(owner), second)} is {flat_value(owner, second)!r}; "
            "give one of the two, not both"
        )


def _is_left_out(owner: object, field: str) -> bool:
    """Return True if a field is None and its annotation allows None."""
    if getattr(owner, field) is not None:
        return False
    declared = {member.name: member.type for member in dataclasses.fields(owner)}  # type: ignore[arg-type]
    return "None" in str(declared[field])
