"""Find the servers that a trainer pushes parameters to.

Main types: ``ServiceMapTargets`` for a version 3 fleet, ``ReplicaTargets`` for a version 1 fleet. Both have
``subscribe_model`` and ``get_sync_targets``.

Threading: a lookup reads memory; it never waits for ZooKeeper.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol

from monolith.agent.node_paths import NodePaths, checked_model_name
from monolith.agent.records import SavedModel, parse_sub_model_name
from monolith.agent.service_map import ServiceMap
from monolith.core.errors import ConfigError
from monolith.discovery.zookeeper_session import ZooKeeperSession
from monolith.discovery.zookeeper_watches import NodeWatches

__all__ = ["ReplicaLookup", "ReplicaTargets", "ServiceMapTargets"]


class ServiceMapTargets:
    """Targets of one model of a version 3 fleet.

    Args:
        session: A session; the caller starts and stops it.
        bzid: Namespace.
    """

    def __init__(self, session: ZooKeeperSession, bzid: str) -> None:
        self._watches = NodeWatches(session, name="sync-targets-watches")
        self._service_map = ServiceMap(self._watches, NodePaths(bzid))
        self._lock = threading.Lock()
        self._model: str | None = None

    def subscribe_model(self, model_name: str) -> None:
        """Follow a model; the same name again changes nothing.

        Raises:
            ConfigError: Another model is subscribed.
        """
        checked_model_name("model_name", model_name)
        with self._lock:
            if self._model not in (None, model_name):
                raise ConfigError(
                    f"model_name is {model_name!r}, expected {self._model!r}, which is subscribed; use another object"
                )
            self._model = model_name
        self._service_map.track([model_name])

    def get_sync_targets(self, sub_graph: str) -> tuple[str, list[str]]:
        """Return ``<model>:<sub_graph>`` and the gRPC addresses of its servers.

        Raises:
            ConfigError: No model is subscribed.
        """
        if self._model is None:
            raise ConfigError("model_name is None, expected a subscribed model; call subscribe_model first")
        saved_model = SavedModel(self._model, sub_graph)
        return str(saved_model), self._service_map.addresses(saved_model)

    def close(self) -> None:
        """End the watches."""
        self._service_map.close()
        self._watches.close()


class ReplicaLookup(Protocol):
    """Finds AVAILABLE replicas of a version 1 fleet."""

    def get_replicas_with_extra_info(self, server_type: str, task: int) -> Mapping[str, Mapping[str, Any]]:
        """Return address to ``idc``, ``cluster`` and ``replica_id`` of the replicas of a task in all locations."""


class ReplicaTargets:
    """Targets of one model of a version 1 fleet.

    Args:
        lookup: The replica map of the model.
    """

    def __init__(self, lookup: ReplicaLookup) -> None:
        self._lookup = lookup
        self.model_name: str | None = None

    def subscribe_model(self, model_name: str) -> None:
        """Store the name of the model; the replica map knows its model already."""
        self.model_name = model_name

    def get_sync_targets(self, sub_graph: str) -> tuple[str, dict[str, dict[str, Any]]]:
        """Return the sub-graph, and address to location and replica id of its servers.

        Raises:
            ConfigError: The sub-graph is not ``ps_<number>``.
        """
        server_type, index = parse_sub_model_name(sub_graph)
        if server_type != "ps" or "_" not in sub_graph:
            raise ConfigError(f"sub_graph is {sub_graph!r}, expected ps_<number>; only ps sub-graphs take parameters")
        replicas = self._lookup.get_replicas_with_extra_info("ps", index)
        return f"ps_{index}", {address: dict(extra) for address, extra in replicas.items()}
