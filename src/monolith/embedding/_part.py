"""The common base of optimizers, initializers, compressors and filters: a kind, settings, checks, a JSON form.

Each family lists its members in its module.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar

from monolith.core.errors import ConfigError


class SpecPart:
    """A frozen dataclass that the engine knows by ``kind`` and by numeric ``settings()``."""

    __slots__ = ()

    kind: ClassVar[str]
    """The name of the part in the engine and in the original's configuration messages."""

    python_only: ClassVar[frozenset[str]] = frozenset()
    """Fields that steer the Python side and never reach the engine."""

    def settings(self) -> dict[str, float]:
        """Return exactly the settings that the engine takes; booleans become 0 and 1."""
        return {name: float(value) for name, value in fields_of(self).items() if name not in self.python_only}


PartT = TypeVar("PartT", bound=SpecPart)


def fields_of(part: object) -> dict[str, Any]:
    """Return field name to value of a dataclass instance, one level deep."""
    return {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}  # type: ignore[arg-type]


def check_number(owner: object, field: str, *, at_least: float = -math.inf, above: float = -math.inf) -> None:
    """Refuse a field that is not a finite number of at least ``at_least`` and more than ``above``."""
    value = getattr(owner, field)
    label = f"{type(owner).__name__}.{field}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{label} is {value!r}; give a finite number")
    if value < at_least:
        raise ConfigError(f"{label} is {value!r}; give a number of at least {at_least:g}")
    if value <= above:
        raise ConfigError(f"{label} is {value!r}; give a number above {above:g}")


def check_decay(owner: object, field: str) -> None:
    """Refuse a decay factor outside [0, 1)."""
    check_number(owner, field, at_least=0.0)
    value = getattr(owner, field)
    if value >= 1:
        raise ConfigError(f"{type(owner).__name__}.{field} is {value!r}; give a number from 0 to below 1")


def check_whole(owner: object, field: str, *, at_least: int = 0, below: int | None = None) -> None:
    """Refuse a field that is not an ``int`` of at least ``at_least`` and less than ``below``."""
    value = getattr(owner, field)
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        label = f"{type(owner).__name__}.{field}"
        raise ConfigError(f"{label} is {value!r}; give a whole number of at least {at_least}")
    if below is not None and value >= below:
        raise ConfigError(f"{type(owner).__name__}.{field} is {value!r}; give a whole number below {below}")


def check_bool(owner: object, field: str) -> None:
    """Refuse a field that is not True or False."""
    value = getattr(owner, field)
    if not isinstance(value, bool):
        raise ConfigError(f"{type(owner).__name__}.{field} is {value!r}; give True or False")


def check_keys(where: str, given: Iterable[str], known: Iterable[str], required: Iterable[str] = ()) -> None:
    """Refuse unknown keys with the nearest known one, and missing keys by name."""
    known = sorted(known)
    given = list(given)
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            remedy = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
            raise ConfigError(f"{where} has the unknown key {key!r}; {remedy}")
    for key in required:
        if key not in given:
            raise ConfigError(f"{where} has no key {key!r}; add it")


def encode_part(part: SpecPart) -> dict[str, Any]:
    """Return the JSON form of a part: its kind and every field."""
    encoded: dict[str, Any] = {"kind": part.kind}
    for name, value in fields_of(part).items():
        encoded[name] = encode_part(value) if isinstance(value, SpecPart) else value
    return encoded


def decode_part(encoded: object, family: Mapping[str, type[PartT]], where: str) -> PartT:
    """Build a part of ``family`` (kind to class) from its JSON form; refuse unknown kinds and keys."""
    if not isinstance(encoded, Mapping):
        raise ConfigError(f"{where} is {encoded!r}; give an object with a 'kind'")
    kind = encoded.get("kind")
    if not isinstance(kind, str) or kind not in family:
        near = difflib.get_close_matches(str(kind), list(family), n=1)
        remedy = f"did you mean {near[0]!r}?" if near else f"known kinds: {', '.join(sorted(family))}"
        raise ConfigError(f"{where} has the unknown kind {kind!r}; {remedy}")
    members = dataclasses.fields(family[kind])  # type: ignore[arg-type]
    required = [member.name for member in members if member.default is dataclasses.MISSING]
    check_keys(where, encoded, ["kind", *(member.name for member in members)], required)
    arguments = {name: value for name, value in encoded.items() if name != "kind"}
    for name, value in arguments.items():
        if isinstance(value, Mapping):
            arguments[name] = decode_part(value, family, f"{where}.{name}")
    return family[kind](**arguments)
