"""The client library: loads confluent_kafka when a source or writer connects, and checks the settings of consumers."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from monolith.core.errors import ConfigError

__all__ = ["assigns_incrementally", "consumer_settings", "load_client"]

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
