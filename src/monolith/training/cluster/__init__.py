"""Training across processes: roles, launchers, discovery of servers, shared state, and shutdown.

Tables are on parameter servers (``monolith.ps``), addresses in discovery (``monolith.discovery``). A role in ``roles/``
connects an estimator with both; a launcher in ``launch/`` starts the processes. Only the roles that train import
torch.
"""

from __future__ import annotations

from monolith.training.cluster.config import DistributedConfig, Role, from_cluster
from monolith.training.cluster.lifecycle import Session, run_role
from monolith.training.cluster.server_search import find_servers

__all__ = ["DistributedConfig", "Role", "Session", "find_servers", "from_cluster", "run_role"]
