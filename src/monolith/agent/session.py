"""Open the ZooKeeper session of an agent, of its clients and of the controller.

The session timeout is 10 s, the original's: it bounds how long a dead agent stays in the replica map.
"""

from __future__ import annotations

from monolith.core.clock import Clock, SystemClock
from monolith.discovery.zookeeper_client import ZooKeeperClient, checked_servers

__all__ = ["SESSION_TIMEOUT_S", "make_session"]

SESSION_TIMEOUT_S = 10.0


def make_session(
    zk_servers: str, auth: str | None = None, *, timeout_s: float = 10.0, clock: Clock | None = None
) -> ZooKeeperClient:
    """Return a session that is not started yet.

    Args:
        zk_servers: ``host:port,...``.
        auth: ``user:password`` for digest authentication (ZK_AUTH), or None.
        timeout_s: Deadline of one call.
        clock: Measures outages.

    Raises:
        ConfigError: ``zk_servers`` is invalid, or kazoo is not installed.
    """
    return ZooKeeperClient(
        checked_servers(zk_servers),
        auth=auth,
        session_timeout_s=SESSION_TIMEOUT_S,
        timeout_s=timeout_s,
        clock=clock or SystemClock(),
    )
