"""Parameter servers: tables in separate processes, and the store through which a model trains on them.

Needs gRPC (``pip install 'monolith[train]'``), and no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from monolith.ps.config import ServerConfig
from monolith.ps.server import ParameterServer
from monolith.ps.store import RemoteStore, Restart
from monolith.rpc.security import Security

if TYPE_CHECKING:
    from monolith.compat.ps_client import PsClient

__all__ = ["ParameterServer", "PsClient", "RemoteStore", "Restart", "Security", "ServerConfig"]


def __getattr__(name: str) -> Any:
    """Import ``PsClient``, which is part of ``monolith.compat``, on first use."""
    if name != "PsClient":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("monolith.compat.ps_client").PsClient
