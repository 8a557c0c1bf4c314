"""Make the servers of a version 2 host serve the published sub-models.

Main type: ``ModelLoader``. It turns the expected loading into model configs, reloads each server type, and reports the
states of the expected sub-models.

Invariant: a failed reload of one server is repeated after 1, 2, 4 ... 60 s and delays no other server.

Threading: the consumer of the agent's events calls it; each server reloads in its own thread (``ServerProcess``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from monolith.agent.config import AgentConfig
from monolith.agent.hosts import OwnHost
from monolith.agent.messages import ModelVersionStatus
from monolith.agent.records import ModelState, PublishMeta, ReplicaMeta, ServerType, parse_sub_model_name
from monolith.agent.server_monitor import ServerMonitor
from monolith.agent.server_process import ServerControl
from monolith.core.errors import ConfigError

__all__ = ["ModelLoader", "replica_number"]

logger = logging.getLogger(__name__)


def replica_number(kind: str, shard_id: int, replica_id: int) -> int:
    """Return the number of a replica node of a host.

    A PS task runs in one shard, so the replica id is unique. Every host serves the entry, so its shard counts too.
    """
    return replica_id if kind == ServerType.PS or shard_id < 0 else ((shard_id + 1) << 40) + replica_id


class ModelLoader:
    """Loads and reports the sub-models of one host.

    Args:
        config: The configuration, for ports and dense_alone.
        host: Own addresses.
        monitor: Asks the servers.
        servers: Servers by type.
    """

    def __init__(
        self,
        config: AgentConfig,
        host: OwnHost,
        monitor: ServerMonitor,
        servers: Mapping[ServerType, ServerControl],
    ) -> None:
        self._config = config
        self._host = host
        self._monitor = monitor
        self._servers = servers
        self._lock = threading.Lock()
        self._expected: dict[str, PublishMeta] = {}

    @property
    def expected(self) -> dict[str, PublishMeta]:
        """The publish that this host loads of each model."""
        with self._lock:
            return dict(self._expected)

    def load(self, expected: Mapping[str, PublishMeta]) -> None:
        """Make the servers serve exactly these sub-models."""
        if self.expected == expected:
            return
        for kind, models in self._monitor.gen_model_config(expected.values()).items():
            self._servers[kind].set_models(models)
        with self._lock:
            self._expected = dict(expected)
        logger.info("expected loading changed models=%s", sorted(expected))

    def replica_metas(self, shard_id: int, replica_id: int) -> list[ReplicaMeta]:
        """Return the replicas of this host with the states that the servers report."""
        metas = []
        silent: dict[ServerType, ModelVersionStatus] = {}
        for model, publish in sorted(self.expected.items()):
            for name, (_, status) in self._monitor.get_model_status(publish, silent=silent).items():
                sub_model = name.partition(":")[2]
                kind = self._monitor.type_of(sub_model)
                if kind is None:
                    continue
                try:
                    _, task = parse_sub_model_name(sub_model)
                except ConfigError:
                    continue  # an item-embedding model is not a task
                number = replica_number(kind, shard_id, replica_id)
                metas.append(self._meta(model, kind, task, number, ModelState(int(status.state))))
        return metas

    def _meta(self, model: str, kind: ServerType, task: int, replica_id: int, state: ModelState) -> ReplicaMeta:
        port = self._config.port_of(kind) or 0
        archon = self._config.archon_port_of(kind)
        return ReplicaMeta(
            address=self._host.reachable_address(port),
            address_ipv6=self._host.address_ipv6(port),
            stat=state.value,
            model_name=model,
            server_type=kind.value,
            task=task,
            replica=replica_id,
            archon_address=None if archon is None else self._host.address(archon),
            archon_address_ipv6=None if archon is None else self._host.address_ipv6(archon),
        )
