"""Training across processes: roles, how they find each other, what they share, and how they end.

The tables are on parameter servers (``monolith.ps``), the addresses in discovery (``monolith.discovery``); this package
puts an estimator between them. Torch is imported by the roles that train, and by nothing else here.
"""

from __future__ import annotations

from monolith.training.distributed.config import DistributedConfig, Role, from_cluster
from monolith.training.distributed.lifecycle import Session, run_role
from monolith.training.distributed.server_search import find_servers

__all__ = ["DistributedConfig", "Role", "Session", "find_servers", "from_cluster", "run_role"]
