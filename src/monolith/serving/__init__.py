"""Serve exported models over TensorFlow Serving's gRPC and REST APIs. A server needs no torch.

Names are imported on first use, so that a client does not load the server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monolith.serving.batching import BatchSettings
    from monolith.serving.client import Client
    from monolith.serving.config import ServingConfig
    from monolith.serving.loaded_model import DegradedOutputs
    from monolith.serving.model_config import ModelConfig, VersionPolicy
    from monolith.serving.remote_addresses import DiscoveredAddresses, FileAddresses, GivenAddresses
    from monolith.serving.remote_calls import RemoteCalls, RemoteSettings
    from monolith.serving.remote_loading import servable_loader
    from monolith.serving.servable import Servable
    from monolith.serving.server import ModelServer

__all__ = [
    "BatchSettings",
    "Client",
    "DegradedOutputs",
    "DiscoveredAddresses",
    "FileAddresses",
    "GivenAddresses",
    "ModelConfig",
    "ModelServer",
    "RemoteCalls",
    "RemoteSettings",
    "Servable",
    "ServingConfig",
    "VersionPolicy",
    "servable_loader",
]

_HOMES = {
    "BatchSettings": "batching",
    "Client": "client",
    "DegradedOutputs": "loaded_model",
    "DiscoveredAddresses": "remote_addresses",
    "FileAddresses": "remote_addresses",
    "GivenAddresses": "remote_addresses",
    "ModelConfig": "model_config",
    "ModelServer": "server",
    "RemoteCalls": "remote_calls",
    "RemoteSettings": "remote_calls",
    "Servable": "servable",
    "ServingConfig": "config",
    "VersionPolicy": "model_config",
    "servable_loader": "remote_loading",
}


def __getattr__(name: str) -> Any:
    """Import ``name`` on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
