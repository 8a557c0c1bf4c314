"""Reads YAML or JSON configuration files into entries with their line numbers.

:mod:`monolith.core.config` interprets the keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from monolith.core.errors import ConfigError
from monolith.core.storage import open_file

__all__ = ["FileEntry", "parse_value", "read_config_file"]

_NULL = "tag:yaml.org,2002:null"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One key of a file."""

    key: str
    value: Any
    """The whole value, mappings included."""
    place: str
    """Where it stands: ``job.yaml:3``, or ``job.json`` for JSON, which tells no lines."""
    entries: tuple[FileEntry, ...] | None = None
    """The keys below it when the value is a mapping, else None."""


def read_config_file(path: str | Path) -> tuple[FileEntry, ...]:
    """Return the keys of a file; an empty file has none.

    Args:
        path: A path or URL; a name that ends in ``.json`` is read as JSON, any other as YAML.

    Raises:
        ConfigError: It is not a mapping in that format, or sets a key twice.
        OSError: It cannot be read.
    """
    name = str(path)
    with open_file(name) as file:
        content = file.read()
    return _read_json(name, content) if name.lower().endswith(".json") else _read_yaml(name, content)


def parse_value(text: str) -> Any:
    """Return the value that a piece of JSON or YAML spells.

    Raises:
        ValueError: It spells none.

    >>> parse_value("{new: old}"), parse_value('["a", "b"]')
    ({'new': 'old'}, ['a', 'b'])
    """
    try:
        return json.loads(text)  # first, because YAML reads the escapes of JSON otherwise
    except (ValueError, RecursionError):
        pass
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(_one_line(error)) from error


def _read_yaml(name: str, content: bytes) -> tuple[FileEntry, ...]:
    try:
        loader = yaml.SafeLoader(content)
        try:
            node = loader.get_single_node()
            if node is None or node.tag == _NULL:
                return ()
            if not isinstance(node, yaml.MappingNode):
                raise ConfigError(f"{name} holds no settings; write one 'key: value' per line")
            return _yaml_entries(name, loader, node)
        finally:
            loader.dispose()
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: an invalid date
        raise ConfigError(f"{name} is not YAML: {_one_line(error)}") from error


def _yaml_entries(name: str, loader: yaml.SafeLoader, node: yaml.MappingNode) -> tuple[FileEntry, ...]:
    found: dict[str, FileEntry] = {}
    for key_node, value_node in node.value:
        place = f"{name}:{key_node.start_mark.line + 1}"
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(f"{place} has a key that is not a name; write 'key: value'")
        key = str(key_node.value)
        if key in found:
            raise ConfigError(f"{place} sets {key!r}, which {found[key].place} sets already; keep one of them")
        is_mapping = isinstance(value_node, yaml.MappingNode)
        below = _yaml_entries(name, loader, value_node) if is_mapping else None
        value = loader.construct_object(value_node, deep=True)
        found[key] = FileEntry(key, value, place, below)
    return tuple(found.values())


def _read_json(name: str, content: bytes) -> tuple[FileEntry, ...]:
    def refuse_twins(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ConfigError(f"{name} sets {key!r} twice; keep one of them")
            found[key] = value
        return found

    try:
        settings = json.loads(content, object_pairs_hook=refuse_twins)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is not JSON: {_one_line(error)}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{name} holds no settings; write an object")
    return _json_entries(name, settings)


def _json_entries(name: str, settings: Mapping[str, Any]) -> tuple[FileEntry, ...]:
    return tuple(
        FileEntry(key, value, name, _json_entries(name, value) if isinstance(value, dict) else None)
        for key, value in settings.items()
    )


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
