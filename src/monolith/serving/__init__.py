"""Serve exported models over TensorFlow Serving's gRPC and REST APIs. A server needs no torch.

Names are imported on first use, so that a client does not load the server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monolith.serving.api.client import Client
    from monolith.serving.config import ServingConfig
    from monolith.serving.remote.addresses import DiscoveredAddresses, FileAddresses, GivenAddresses
    from monolith.serving.remote.calls import RemoteCalls, RemoteSettings
    from monolith.serving.remote.loading import servable_loader
    from monolith.serving.requests.batching import BatchSettings
    from monolith.serving.servable.servable import Servable
    from monolith.serving.server import ModelServer
    from monolith.serving.versions.loaded_model import DegradedOutputs
    from monolith.serving.versions.model_config import ModelConfig, VersionPolicy

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
    "BatchSettings": "requests.batching",
    "Client": "api.client",
    "DegradedOutputs": "versions.loaded_model",
    "DiscoveredAddresses": "remote.addresses",
    "FileAddresses": "remote.addresses",
    "GivenAddresses": "remote.addresses",
    "ModelConfig": "versions.model_config",
    "ModelServer": "server",
    "RemoteCalls": "remote.calls",
    "RemoteSettings": "remote.calls",
    "Servable": "servable.servable",
    "ServingConfig": "config",
    "VersionPolicy": "versions.model_config",
    "servable_loader": "remote.loading",
}


def __getattr__(name: str) -> Any:
    """Import ``name`` on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
