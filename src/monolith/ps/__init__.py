"""Parameter servers: tables in separate processes, and the store through which a model trains on them.

Needs gRPC (``pip install 'monolith[train]'``), and no torch.
"""

from __future__ import annotations

from monolith.ps.client import PsClient
from monolith.ps.config import ServerConfig
from monolith.ps.server import ParameterServer
from monolith.ps.store import RemoteStore, Restart
from monolith.rpc.security import Security

__all__ = ["ParameterServer", "PsClient", "RemoteStore", "Restart", "Security", "ServerConfig"]
