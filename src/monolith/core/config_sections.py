"""Configurations made of sections: nested inside, flat at the edges.

A component receives its own section, such as ``config.checkpoint``. Flags, environment variables, files and callers
name a field alone: ``RunConfig(save_checkpoints_steps=50)``. The two meet here.

A field of a section has its own name as flat name, except times: they are seconds inside and keep the unit that users
know outside (``discovery_operation_timeout_ms``). Sections are frozen dataclasses that check themselves.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from monolith.core.errors import ConfigError

__all__ = [
    "FlatField",
    "build_section",
    "fill_sections",
    "flat_fields",
    "flat_name",
    "flat_value",
    "read_setting",
    "replace_settings",
    "section",
    "subsection",
    "time_s",
    "unknown_field",
]

S = TypeVar("S")
C = TypeVar("C")

_IS_SECTION = "monolith.section"
_TIME = "monolith.time"


@dataclass(frozen=True, slots=True)
class _Section:
    """How the fields of a section are shown outside."""

    name: str | None
    is_own: bool
    """False: among the fields of the section around it."""


@dataclass(frozen=True, slots=True)
class _Time:
    """How a time is written outside: its flat name, its unit and its type there."""

    flat: str
    unit_s: float
    is_whole: bool

    def read(self, value: Any) -> Any:
        """Return a flat value in seconds; anything but a number is left for the section to refuse."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        return value if self.unit_s == 1 else value * self.unit_s

    def write(self, seconds: Any) -> Any:
        """Return seconds in the unit of the flat field."""
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            return seconds
        if isinstance(seconds, int) and seconds % self.unit_s == 0:
            return seconds if self.unit_s == 1 else round(seconds / self.unit_s)
        value = seconds / self.unit_s
        is_whole = self.is_whole and math.isfinite(value) and abs(value - round(value)) < 1e-6
        return round(value) if is_whole else value


@dataclass(frozen=True, slots=True)
class FlatField:
    """A field of some section as users name it."""

    name: str
    path: tuple[str, ...]
    """Attributes from the configuration to the field, which is the last of them."""
    owner: type
    """The section that declares it."""
    section: str
    """The section under which files and ``--help`` show it."""
    hint: Any
    default: Any
    """In the unit of the flat name; ``dataclasses.MISSING`` when it must be given."""

    def read(self, config: object) -> Any:
        """Return the field of ``config`` in the unit of the flat name."""
        holder = functools.reduce(getattr, self.path[:-1], config)
        return flat_value(holder, self.path[-1])


def section(section_type: type[S], *, name: str | None = None) -> S:
    """Declare a field that holds a section.

    Args:
        section_type: a frozen dataclass whose fields all have defaults.
        name: the section in files and in ``--help``; None = the name of the field.
    """
    field: S = dataclasses.field(default_factory=section_type, metadata={_IS_SECTION: _Section(name, is_own=True)})
    return field


def subsection(section_type: type[S]) -> S:
    """Declare a field that holds a section whose fields are shown among those of the section around it."""
    field: S = dataclasses.field(default_factory=section_type, metadata={_IS_SECTION: _Section(None, is_own=False)})
    return field


def time_s(default_s: float | None, *, flat: str, unit_s: float = 1, is_whole: bool = False) -> Any:
    """Declare a time in seconds that users write as ``flat``, in units of ``unit_s`` seconds."""
    return dataclasses.field(default=default_s, metadata={_TIME: _Time(flat, unit_s, is_whole)})


def flat_name(owner: type, field: str) -> str:
    """Return the name under which users know a field of a section."""
    time = _times(owner).get(field)
    return field if time is None else time.flat


def flat_value(owner: object, field: str) -> Any:
    """Return the value of a section's field in the unit of its flat name."""
    owner_type: Any = type(owner)
    time = _times(owner_type).get(field)
    value = getattr(owner, field)
    return value if time is None else time.write(value)


@functools.cache
def flat_fields(config_type: type) -> Mapping[str, FlatField]:
    """Return all fields of a configuration and of its sections, by flat name.

    Raises:
        ConfigError: ``config_type`` is not a dataclass, or two sections have a field of the same name.
    """
    if not dataclasses.is_dataclass(config_type):
        raise ConfigError(f"configuration type is {config_type!r}, expected a dataclass; give a configuration class")
    found: dict[str, FlatField] = {}
    for field in _walk(config_type, (), ""):
        if field.name in found:
            raise ConfigError(f"field {field.name!r} is in {field.owner.__name__} and {found[field.name].owner}")
        found[field.name] = field
    return found


def fill_sections(config: object, settings: Mapping[str, Any], retired: Mapping[str, str]) -> None:
    """Set every field of a frozen configuration whose constructor takes sections and flat fields.

    A flat field beside its section replaces that field of the section, so ``dataclasses.replace`` takes both too.

    Raises:
        ConfigError: A name is unknown or retired, or a section refuses a value.
    """
    config_type: Any = type(config)
    _check_names(config_type, settings, retired)
    for name, value in _build_fields(config_type, settings).items():
        object.__setattr__(config, name, value)


def build_section(section_type: type[S], **settings: Any) -> S:
    """Return a section, with some of its fields or subsections given by the names that users write.

    Raises:
        ConfigError: A name is unknown, or the section refuses a value.
    """
    _check_names(section_type, settings, {})
    return section_type(**_build_fields(section_type, settings))


def read_setting(config: object, name: str) -> Any:
    """Return a field of ``config`` or of its sections by flat name, in the unit of that name."""
    config_type: Any = type(config)
    return flat_fields(config_type)[name].read(config)


def replace_settings(config: C, **settings: Any) -> C:
    """Return ``config`` with some of its fields, named as users name them, or some of its sections replaced."""
    kept = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    return type(config)(**(kept | settings))


def unknown_field(
    name: str, known: Iterable[str], retired: Mapping[str, str], *, place: str, config_type: type
) -> ConfigError:
    """Return the error for a field that a configuration type does not have."""
    if name in retired:
        return ConfigError(f"{place} sets {name!r}, which is retired: {retired[name]}")
    near = difflib.get_close_matches(name, list(known), n=1)
    remedy = f"did you mean {near[0]!r}?" if near else "remove it; --print-config lists the fields"
    return ConfigError(f"{place} sets {name!r}, which is not a field of {config_type.__name__}; {remedy}")


def _check_names(config_type: Any, settings: Mapping[str, Any], retired: Mapping[str, str]) -> None:
    known = flat_fields(config_type)
    fields = {field.name for field in dataclasses.fields(config_type)}
    for name in settings:
        if name not in known and name not in fields:
            raise unknown_field(name, known, retired, place=config_type.__name__, config_type=config_type)


def _build_fields(config_type: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of each field of ``config_type``; fields that are not given have their defaults."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(config_type):
        name = flat_name(config_type, field.name)
        if _IS_SECTION in field.metadata:
            values[field.name] = _build_section(config_type, field.name, settings)
        elif name in settings:
            time = _times(config_type).get(field.name)
            values[field.name] = settings[name] if time is None else time.read(settings[name])
        elif field.name in settings:
            values[field.name] = settings[field.name]
        elif field.default_factory is not dataclasses.MISSING:
            values[field.name] = field.default_factory()
        elif field.default is not dataclasses.MISSING:
            values[field.name] = field.default
        else:
            raise ConfigError(f"{name} is missing, expected a value; give {name} to {config_type.__name__}")
    return values


def _build_section(config_type: type, name: str, settings: Mapping[str, Any]) -> Any:
    section_type = typing.get_type_hints(config_type)[name]
    own = {key: value for key, value in settings.items() if key in flat_fields(section_type)}
    given = settings.get(name)
    if given is not None and not isinstance(given, section_type):
        raise ConfigError(f"{config_type.__name__}.{name} is {given!r}, expected a {section_type.__name__}")
    if given is None:
        return section_type(**_build_fields(section_type, own))
    if not own:
        return given
    kept = {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    return section_type(**_build_fields(section_type, kept | own))


def _walk(config_type: type, path: tuple[str, ...], outer: str) -> Iterator[FlatField]:
    hints = typing.get_type_hints(config_type)
    for field in dataclasses.fields(config_type):
        if not field.init:
            continue
        holder: _Section | None = field.metadata.get(_IS_SECTION)
        if holder is not None:
            name = (holder.name or field.name) if holder.is_own else outer
            yield from _walk(hints[field.name], (*path, field.name), name)
            continue
        time: _Time | None = field.metadata.get(_TIME)
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        yield FlatField(
            name=field.name if time is None else time.flat,
            path=(*path, field.name),
            owner=next(base for base in config_type.__mro__ if field.name in inspect.get_annotations(base)),
            section=outer,
            hint=hints[field.name] if time is None or not time.is_whole else _whole(hints[field.name]),
            default=default if time is None else time.write(default),
        )


def _whole(hint: Any) -> Any:
    return int | None if type(None) in typing.get_args(hint) else int


@functools.cache
def _times(owner: type) -> Mapping[str, _Time]:
    return {field.name: field.metadata[_TIME] for field in dataclasses.fields(owner) if _TIME in field.metadata}
