"""Declare saved models and put them into layouts: the controller's face of the version 3 nodes.

Main type: ``Layouts``. All nodes are persistent. A read that meets a vanished node skips it.
"""

from __future__ import annotations

from typing import Any

from monolith.agent.node_paths import NodePaths, checked_model_name, parse_binding, parse_container
from monolith.agent.records import SavedModel, SavedModelDeployConfig
from monolith.core.errors import ConfigError
from monolith.discovery.zookeeper_nodes import delete_if_present, put
from monolith.discovery.zookeeper_session import NodeMissing, ZooKeeperSession

__all__ = ["Layouts"]

_POLICIES = ("latest", "latest_once", "all")


class Layouts:
    """Declarations and layouts of one bzid.

    Args:
        session: A started session.
        bzid: Namespace.
    """

    def __init__(self, session: ZooKeeperSession, bzid: str) -> None:
        self._session = session
        self._paths = NodePaths(bzid)

    @property
    def paths(self) -> NodePaths:
        """Node paths of the bzid."""
        return self._paths

    def list_saved_models(self, model_name: str) -> list[SavedModel]:
        """Return the declared sub-graphs of a model; none if the model is not declared."""
        names = self._children(f"{self._paths.saved_models}/{checked_model_name('model_name', model_name)}")
        return [SavedModel(model_name, name) for name in names]

    def declare(self, saved_model: SavedModel, config: SavedModelDeployConfig) -> None:
        """Create or set the declaration of a sub-graph.

        Raises:
            ConfigError: A name cannot stand in a path, or the policy cannot be declared.
        """
        checked_model_name("model_name", saved_model.model_name)
        checked_model_name("sub_graph", saved_model.sub_graph)
        policy = config.version_policy
        if policy is None or policy.lower() not in _POLICIES:
            raise ConfigError(
                f"version_policy of {saved_model} is {policy!r}, expected one of {', '.join(_POLICIES)}; "
                "a declaration cannot name specific versions"
            )
        put(self._session, self._paths.saved_model(saved_model), config.to_bytes())

    def add_to_layout(self, layout_path: str, saved_model: SavedModel) -> None:
        """Put a sub-graph into a layout."""
        put(self._session, f"{layout_path}/{saved_model}", b"")

    def remove_from_layout(self, layout_path: str, saved_model: SavedModel) -> None:
        """Take a sub-graph out of a layout; a missing one is fine."""
        delete_if_present(self._session, f"{layout_path}/{saved_model}")

    def list_layout(self, layout_path: str) -> list[str]:
        """Return the names of the nodes of a layout; none if there is no such layout."""
        return self._children(layout_path)

    def bzid_info(self) -> dict[str, Any]:
        """Return declarations, bindings, containers and layouts of the bzid, for people."""
        containers = self._containers()
        models = self._models()
        self._add_bindings(models, containers)
        layouts = {
            name: self._children(f"{self._paths.layouts}/{name}") for name in self._children(self._paths.layouts)
        }
        return {
            "model_info": {name: _with_counts(model) for name, model in sorted(models.items())},
            "container_info": {
                cluster: dict(sorted(members.items())) for cluster, members in sorted(containers.items())
            },
            "layout_info": layouts,
        }

    def _models(self) -> dict[str, dict[str, dict[str, Any]]]:
        models: dict[str, dict[str, dict[str, Any]]] = {}
        for model in self._children(self._paths.saved_models):
            folder = f"{self._paths.saved_models}/{model}"
            names = self._children(folder)
            readings = self._session.get_all([f"{folder}/{name}" for name in names])
            models[model] = {
                name: {"deploy_config": reading[0].decode(errors="replace"), "bindings": []}
                for name, reading in zip(names, readings, strict=True)
                if reading is not None
            }
        return models

    def _containers(self) -> dict[str, dict[str, dict[str, Any]]]:
        containers: dict[str, dict[str, dict[str, Any]]] = {}
        names = self._children(self._paths.container_services)
        readings = self._session.get_all([f"{self._paths.container_services}/{name}" for name in names])
        for name, reading in zip(names, readings, strict=True):
            container = parse_container(name)
            if container is not None and reading is not None:
                info = {"service_info": reading[0].decode(errors="replace"), "saved_models": []}
                containers.setdefault(container.ctx_cluster, {})[container.ctx_id] = info
        return containers

    def _add_bindings(
        self, models: dict[str, dict[str, dict[str, Any]]], containers: dict[str, dict[str, dict[str, Any]]]
    ) -> None:
        for model in self._children(self._paths.bindings):
            for name in self._children(self._paths.model_bindings(model)):
                parsed = parse_binding(name)
                if parsed is None:
                    continue
                sub_graph, container = parsed
                entry = models.setdefault(model, {}).setdefault(sub_graph, {"bindings": []})
                entry["bindings"].append(str(container))
                members = containers.setdefault(container.ctx_cluster, {})
                members.setdefault(container.ctx_id, {"saved_models": []})["saved_models"].append(
                    f"{model}:{sub_graph}"
                )

    def _children(self, path: str) -> list[str]:
        try:
            return sorted(self._session.children(path))
        except NodeMissing:
            return []


def _with_counts(model: dict[str, dict[str, Any]]) -> dict[str, Any]:
    bound = sum(1 for entry in model.values() if entry["bindings"])
    counts = {"sub_graphs_total": sum(1 for entry in model.values() if "deploy_config" in entry)}
    if bound:
        counts["sub_graphs_available"] = bound
    return {**counts, **dict(sorted(model.items()))}
