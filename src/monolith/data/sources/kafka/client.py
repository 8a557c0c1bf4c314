"""The client library: loads confluent_kafka when a source or writer connects, and reads and checks its settings."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monolith.core.errors import ConfigError

__all__ = ["assigns_incrementally", "consumer_settings", "load_client", "read_settings"]

_RESERVED = (
    "bootstrap.servers",
    "group.id",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "auto.offset.reset",
    "enable.partition.eof",
    "error_cb",
    "on_commit",
)


def load_client() -> Any:
    """Return the module ``confluent_kafka``.

    Raises:
        ConfigError: confluent-kafka is not installed.
    """
    try:
        return importlib.import_module("confluent_kafka")
    except ImportError as exc:
        raise ConfigError(
            f"Kafka needs confluent-kafka ({exc}); install it with: pip install 'monolith[kafka]'"
        ) from exc


def read_settings(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the librdkafka settings of a file, one ``name=value`` per line; ``#`` starts a comment line.

    Errors name the line and never its value, which may be a password.

    Raises:
        ConfigError: The file cannot be read, or a line is invalid.
    """
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"settings of Kafka cannot be read from {os.fspath(path)!r}: {error}") from error
    settings: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, equals, value = (each.strip() for each in line.partition("="))
        if (not name and not equals) or name.startswith("#"):
            continue
        if not name or not equals:
            raise ConfigError(f"{os.fspath(path)!r} line {number} has no name=value; write one setting per line")
        if name in settings:
            raise ConfigError(f"{os.fspath(path)!r} line {number} sets {name!r} again; remove one of the two lines")
        settings[name] = value
    return settings


def consumer_settings(servers: str, group: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a consumer: the caller's ``config`` and the ones that exact positions need.

    Raises:
        ConfigError: ``config`` holds a setting that the source fills in.
    """
    if reserved := [name for name in _RESERVED if name in config]:
        raise ConfigError(f"config holds {', '.join(reserved)}, expected other settings; the source sets these itself")
    return {
        # Members keep their partitions while others join, so a rebalance pauses only the partitions that move.
        "partition.assignment.strategy": "cooperative-sticky",
        **config,
        "bootstrap.servers": servers,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
    }


def assigns_incrementally(settings: Mapping[str, Any]) -> bool:
    """Return True if a rebalance names only the partitions that were added, not the whole assignment."""
    is_new_protocol = str(settings.get("group.protocol", "")).lower() == "consumer"
    return is_new_protocol or "cooperative" in str(settings["partition.assignment.strategy"])
