"""Follow which containers serve the sub-graphs of models.

Main type: ``ServiceMap``. It watches the bindings of the models it tracks and the service info of the containers that
the bindings name.

Invariants: a container is in the map while its binding and its service info both exist, in whichever order they
appear. A change costs the work of one model, not of all. An invalid node is logged once and ignored.

Threading: watches call from the one thread of ``NodeWatches``; other threads may read and set the models.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from monolith.agent.node_paths import NodePaths, parse_binding
from monolith.agent.records import BadNodes, Container, ContainerServiceInfo, RecordInvalid, SavedModel
from monolith.discovery.zookeeper_session import NodeStat
from monolith.discovery.zookeeper_watches import NodeWatches, WatchHandle

__all__ = ["ServiceMap"]

logger = logging.getLogger(__name__)


class ServiceMap:
    """The containers that serve each sub-graph of the tracked models.

    Args:
        watches: Lasting watches of the session.
        paths: Node paths of the bzid.
        on_change: Called in the thread of the watches after the map changed.
        bad_nodes: Logs invalid nodes.
    """

    def __init__(
        self,
        watches: NodeWatches,
        paths: NodePaths,
        *,
        on_change: Callable[[], None] = lambda: None,
        bad_nodes: BadNodes | None = None,
    ) -> None:
        self._watches = watches
        self._paths = paths
        self._on_change = on_change
        self._bad_nodes = bad_nodes or BadNodes()
        self._lock = threading.RLock()
        self._models: dict[str, WatchHandle] = {}
        self._bindings: dict[str, dict[str, tuple[str, Container]]] = {}
        self._references: Counter[Container] = Counter()
        self._containers: dict[Container, WatchHandle] = {}
        self._infos: dict[Container, ContainerServiceInfo] = {}

    def track(self, models: Iterable[str]) -> None:
        """Follow exactly these models; drop the others."""
        wanted = set(models)
        with self._lock:
            gone = [model for model in self._models if model not in wanted]
            for model in gone:
                self._models.pop(model).close()
                self._replace(model, {})
                self._bindings.pop(model, None)
            for model in sorted(wanted - self._models.keys()):
                self._bindings[model] = {}
                self._models[model] = self._watches.watch_children(
                    self._paths.model_bindings(model), partial(self._note_bindings, model)
                )
        if gone:
            self._on_change()

    def snapshot(self) -> dict[str, dict[str, list[ContainerServiceInfo]]]:
        """Return model to sub-graph to the containers that serve it; nothing is listed without a container."""
        result: dict[str, dict[str, list[ContainerServiceInfo]]] = {}
        with self._lock:
            for model, bindings in self._bindings.items():
                for sub_graph, container in sorted(bindings.values()):
                    info = self._infos.get(container)
                    if info is not None:
                        result.setdefault(model, {}).setdefault(sub_graph, []).append(info)
        return result

    def addresses(self, saved_model: SavedModel, *, use_archon: bool = False) -> list[str]:
        """Return the addresses of the containers that serve a sub-graph."""
        addresses = []
        with self._lock:
            for sub_graph, container in sorted(self._bindings.get(saved_model.model_name, {}).values()):
                info = self._infos.get(container)
                if sub_graph == saved_model.sub_graph and info is not None:
                    addresses.append(info.archon if use_archon else info.grpc)
        return [address for address in addresses if address]

    def close(self) -> None:
        """End all watches."""
        with self._lock:
            for handle in (*self._models.values(), *self._containers.values()):
                handle.close()
            self._models.clear()
            self._containers.clear()

    def _note_bindings(self, model: str, names: list[str] | None) -> None:
        bindings: dict[str, tuple[str, Container]] = {}
        for name in names or ():
            parsed = parse_binding(name)
            if parsed is None:
                path = f"{self._paths.model_bindings(model)}/{name}"
                self._bad_nodes.report(path, None, "name is not <sub_graph>:<cluster>:<id>")
            else:
                bindings[name] = parsed
        with self._lock:
            if model not in self._models:
                return
            self._replace(model, bindings)
        self._on_change()

    def _replace(self, model: str, bindings: dict[str, tuple[str, Container]]) -> None:
        old = self._bindings.get(model, {})
        self._bindings[model] = bindings
        for name in bindings.keys() - old.keys():
            container = bindings[name][1]
            self._references[container] += 1
            if container not in self._containers:
                self._containers[container] = self._watches.watch_data(
                    self._paths.container_service(container), partial(self._note_container, container)
                )
        for name in old.keys() - bindings.keys():
            container = old[name][1]
            self._references[container] -= 1
            if not self._references[container]:
                del self._references[container]
                self._infos.pop(container, None)
                self._containers.pop(container).close()

    def _note_container(self, container: Container, content: bytes | None, _: NodeStat | None) -> None:
        path = self._paths.container_service(container)
        info: ContainerServiceInfo | None = None
        if content is None:
            self._bad_nodes.report(path, None, f"no service info of {container}")
        else:
            try:
                info = ContainerServiceInfo.from_bytes(content)
            except RecordInvalid as error:
                self._bad_nodes.report(path, content, error)
            else:
                self._bad_nodes.forget(path)
        with self._lock:
            if container not in self._containers or self._infos.get(container) == info:
                return
            if info is None:
                del self._infos[container]
            else:
                self._infos[container] = info
        self._on_change()
