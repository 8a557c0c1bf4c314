"""The fields of a configuration dataclass: type, section, help, and the conversion of values from outside.

A field's help is the docstring below it. Its section is the attribute that holds it (see ``config_sections``), or the
class that declares it: ``CheckpointConfig`` is ``checkpoint``.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import itertools
import re
import textwrap
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from monolith.core.config_file import parse_value
from monolith.core.config_sections import flat_fields
from monolith.core.errors import ConfigError

__all__ = ["ConfigField", "config_fields"]

_WORDS: Mapping[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "text",
    tuple: "a list",
    Mapping: "a mapping such as {name: value}",
}


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigField:
    """One field of a configuration type."""

    name: str
    section: str
    hint: Any
    """Its type."""
    default: Any
    """``dataclasses.MISSING`` when it must be given."""
    help: str
    read: Callable[[object], Any]
    """Returns the field's value in a configuration."""

    @property
    def kinds(self) -> tuple[object, ...]:
        """The types that it takes, less None and their own arguments."""
        return tuple(_kind(choice) for choice in _choices(self.hint) if choice is not types.NoneType)

    @property
    def allows_none(self) -> bool:
        """Whether None is a value of it."""
        return types.NoneType in _choices(self.hint)

    @property
    def literals(self) -> tuple[str, ...]:
        """The words that it takes, where its type lists them."""
        chosen = [choice for choice in _choices(self.hint) if typing.get_origin(choice) is typing.Literal]
        return tuple(str(word) for choice in chosen for word in typing.get_args(choice))

    def from_text(self, text: str) -> Any:
        """Return the value of a variable or flag. Empty text, and ``none`` except for text fields, is None if allowed.

        Raises:
            ValueError: The text spells no value.
        """
        word = text.strip().lower()
        if self.allows_none and (not word or (word in ("none", "null") and str not in self.kinds)):
            return None
        if Mapping in self.kinds or (tuple in self.kinds and word.startswith("[")):
            return parse_value(text)
        return text

    def convert(self, value: Any, place: str) -> Any:
        """Return ``value`` in the type of the field: text is converted, anything else must fit.

        Raises:
            ConfigError: It cannot be; the text names field, value, place and remedy.
        """
        typed = value
        if tuple in self.kinds and isinstance(value, str):
            typed = tuple(part.strip() for part in value.split(",") if part.strip())
        elif tuple in self.kinds and isinstance(value, list):
            typed = tuple(value)
        try:
            return TypeAdapter(self.hint).validate_python(typed, strict=not isinstance(typed, str))
        except ValidationError as error:
            raise self.refusal(value, place) from error

    def refusal(self, value: Any, place: str) -> ConfigError:
        """Return the error for a value that does not fit."""
        near = difflib.get_close_matches(str(value), self.literals, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else f"give {self.wanted}"
        return ConfigError(f"{self.name} is {value!r} in {place}; {remedy}")

    @property
    def wanted(self) -> str:
        """The type of the field in words."""
        words = [f"one of {', '.join(self.literals)}"] if self.literals else []
        words += [_WORDS.get(kind, str(kind)) for kind in self.kinds if kind is not typing.Literal]
        return " or ".join(dict.fromkeys([*words, "none"] if self.allows_none else words))


def config_fields(config_type: type) -> dict[str, ConfigField]:
    """Return the fields of a configuration type and its sections by flat name, in order.

    Raises:
        ConfigError: ``config_type`` is not a dataclass.
    """
    return {
        flat.name: ConfigField(
            name=flat.name,
            section=flat.section or _section(flat.owner),
            hint=flat.hint,
            default=flat.default,
            help=_helps(flat.owner).get(flat.path[-1], ""),
            read=flat.read,
        )
        for flat in flat_fields(config_type).values()
    }


def _choices(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _kind(choice: Any) -> object:
    origin = typing.get_origin(choice) or choice
    return Mapping if isinstance(origin, type) and issubclass(origin, Mapping) else origin


def _section(owner: type) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", owner.__name__.removesuffix("Config").strip("_")).lower()


@functools.cache
def _helps(owner: type) -> Mapping[str, str]:
    """The docstrings below the fields of one class; none where its source is not at hand."""
    try:
        source = textwrap.dedent(inspect.getsource(owner))
    except (OSError, TypeError):
        return {}
    (declaration,) = ast.parse(source).body
    statements = declaration.body if isinstance(declaration, ast.ClassDef) else []
    found = {}
    for statement, below in itertools.pairwise(statements):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            match below:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    found[statement.target.id] = " ".join(text.split())
    return found
