"""Ask a version 2 fleet to load or unload a model, and read its progress.

Main type: ``Portal``, over the nodes below ``/portal``, ``/publish`` and ``/service``.
"""

from __future__ import annotations

import logging

from monolith.agent.node_paths import NodePaths, checked_model_name, parse_task
from monolith.agent.records import LoadState, ModelMeta, RecordInvalid, ReplicaMeta
from monolith.core.errors import ConfigError
from monolith.discovery.zookeeper_nodes import delete_if_present, put
from monolith.discovery.zookeeper_session import NodeMissing, ZooKeeperSession

__all__ = ["Portal"]

logger = logging.getLogger(__name__)


class Portal:
    """Wanted models of one bzid.

    Args:
        session: A started session.
        bzid: Namespace.
    """

    def __init__(self, session: ZooKeeperSession, bzid: str) -> None:
        self._session = session
        self.paths = NodePaths(bzid)
        """Builders of the node paths."""

    def load(self, meta: ModelMeta, *, replaces: bool = False) -> None:
        """Ask the fleet to serve a model.

        Args:
            meta: The model.
            replaces: Whether an existing wish is replaced; False = it is an error.

        Raises:
            ConfigError: The model is wanted already.
        """
        name = checked_model_name("model_name", meta.model_name or "")
        path = meta.get_path(self.paths.portal)
        if not meta.model_dir:
            raise ConfigError("model_dir is '', expected the base of an export; give --model-dir")
        if not replaces and self._session.exists(path) is not None:
            raise ConfigError(f"{name} has exists; unload it first, or give another name")
        put(self._session, path, meta.to_bytes())

    def unload(self, model_name: str) -> bool:
        """Ask the fleet to stop serving a model; return False if it was not wanted."""
        checked_model_name("model_name", model_name)
        is_deleted = delete_if_present(self._session, f"{self.paths.portal}/{model_name}")
        if not is_deleted:
            logger.warning("%s not exists, nothing to do!", model_name)
        return is_deleted

    def state(self, model_name: str) -> LoadState:
        """Return the progress of a model: wanted, published, and the state of each replica."""
        service: dict[str, int] = {}
        for path, meta in self.replicas(model_name).items():
            task, _, replica = path.rpartition("/")
            service[f"{task.rpartition('/')[2]}:{int(replica)}"] = meta.stat or 0
        published = [name for name in self.children(self.paths.publish) if name.split(":", 2)[-1] == model_name]
        return LoadState(
            portal=self._session.exists(f"{self.paths.portal}/{model_name}") is not None,
            publish=bool(published),
            service=service,
        )

    def replicas(self, model_name: str) -> dict[str, ReplicaMeta]:
        """Return the replicas of a model by path, with and without locations."""
        base = self.paths.service(model_name)
        tasks: list[str] = []
        for name in self.children(base):
            if parse_task(name) is not None:
                tasks.append(f"{base}/{name}")
            else:
                tasks += [f"{base}/{name}/{each}" for each in self.children(f"{base}/{name}") if parse_task(each)]
        paths = [f"{task}/{name}" for task in tasks for name in self.children(task) if name.isdigit()]
        result: dict[str, ReplicaMeta] = {}
        for path, reading in zip(paths, self._session.get_all(paths) if paths else [], strict=True):
            if reading is None:
                continue
            try:
                result[path] = ReplicaMeta.from_bytes(reading[0])
            except RecordInvalid as error:
                logger.warning("invalid node ignored path=%s reason=%s", path, error)
        return dict(sorted(result.items()))

    def children(self, path: str) -> list[str]:
        """Return the sorted names below a node; empty if it does not exist."""
        try:
            return sorted(self._session.children(path))
        except NodeMissing:
            return []
