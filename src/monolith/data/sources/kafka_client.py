"""The only module that imports confluent_kafka, and only when someone connects."""

from __future__ import annotations

import importlib
from typing import Any

from monolith.core.errors import ConfigError

__all__ = ["load_client"]


def load_client() -> Any:
    """Return the module.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        return importlib.import_module("confluent_kafka")
    except ImportError as exc:
        raise ConfigError(
            f"Kafka needs confluent-kafka ({exc}); install it with: pip install 'monolith[kafka]'"
        ) from exc
