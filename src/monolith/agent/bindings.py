"""Publish the sub-graphs that a container serves, and follow its layout: the agent's face of the version 3 nodes.

Main type: ``Bindings``. It keeps the ephemeral nodes of a container (service info, one binding per served sub-graph)
equal to the wanted set, calls back when the layout or a deploy config changes, and holds the service map.

Invariants: a new session makes the service info and then all bindings again, immediately. A binding counts as made
only after ZooKeeper confirmed it. A node of an older session is replaced in one transaction. A layout callback gets
complete lists: it waits for the deploy configs of all sub-graphs of the layout.

Threading: one thread writes nodes and repeats failed writes after 1 s. Layout callbacks run in a second thread, so a
slow callback delays neither nodes nor the service map.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias

from monolith.agent.background import BackgroundLoop
from monolith.agent.node_paths import NodePaths, parse_saved_model
from monolith.agent.records import (
    BadNodes,
    Container,
    ContainerServiceInfo,
    RecordInvalid,
    SavedModel,
    SavedModelDeployConfig,
    sub_graph_order,
)
from monolith.agent.service_map import ServiceMap
from monolith.core.errors import ClusterError
from monolith.discovery.zookeeper_nodes import delete_own, put_ephemeral
from monolith.discovery.zookeeper_session import NodeMissing, NodeStat, SessionState, ZooKeeperSession
from monolith.discovery.zookeeper_watches import NodeWatches, WatchHandle

__all__ = ["Bindings", "LayoutCallback", "LayoutEntry"]

logger = logging.getLogger(__name__)

LayoutEntry: TypeAlias = tuple[SavedModel, SavedModelDeployConfig]
LayoutCallback: TypeAlias = Callable[[list[LayoutEntry]], object]
"""Gets the sub-graphs of the layout by model, type and number; a result of False ends the calls."""

_CHECK_S = 10.0
_RETRY_S = 1.0


class Bindings:
    """The nodes of one container.

    Args:
        session: A session; the caller starts and stops it.
        bzid: Namespace.
        on_service_map: Called after the service map changed; it must return soon.
        check_s: Pause between checks that the own nodes exist.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        bzid: str,
        *,
        on_service_map: Callable[[], None] = lambda: None,
        check_s: float = _CHECK_S,
    ) -> None:
        self._session = session
        self._paths = NodePaths(bzid)
        self._bad_nodes = BadNodes()
        self._watches = NodeWatches(session, name="agent-bindings-watches")
        self._service_map = ServiceMap(self._watches, self._paths, on_change=on_service_map, bad_nodes=self._bad_nodes)
        self._layouts: list[_Layout] = []
        self._followed: set[str] = set()
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._info: tuple[str, bytes] | None = None
        self._wanted: dict[str, SavedModel] = {}
        self._made: dict[str, SavedModel | None] = {}
        self._made_by = 0
        self._writer = BackgroundLoop("agent-bindings", self._write, interval_s=check_s, retry_s=_RETRY_S)
        session.add_listener(self._note_state)
        self._writer.start(immediately=False)

    # --- own nodes ---

    def report_service_info(self, container: Container, info: ContainerServiceInfo) -> None:
        """Keep the service info of the container in ZooKeeper from now on."""
        with self._lock:
            self._info = (self._paths.container_service(container), info.to_bytes())
        self._write_now()

    def get_service_info(self, container: Container) -> ContainerServiceInfo | None:
        """Return the service info of a container, or None if it has none that is valid."""
        path = self._paths.container_service(container)
        try:
            content, _ = self._session.get(path)
            return ContainerServiceInfo.from_bytes(content)
        except NodeMissing:
            return None
        except RecordInvalid as error:
            self._bad_nodes.report(path, content, error)
            return None

    def sync_available_saved_models(self, container: Container, models: Iterable[SavedModel]) -> None:
        """Keep bindings for exactly these sub-graphs from now on."""
        with self._lock:
            self._wanted = {self._paths.binding(model, container): model for model in models}
        self._write_now()

    @property
    def available(self) -> frozenset[SavedModel]:
        """The sub-graphs whose bindings ZooKeeper confirmed in the present session."""
        with self._lock:
            if self._made_by != self._session.session_id:
                return frozenset()
            return frozenset(model for model in self._made.values() if model is not None)

    def withdraw(self) -> None:
        """Delete all bindings and then the service info, for an orderly stop; later rounds make nothing again."""
        with self._lock:
            self._wanted = {}
            self._info = None
        self._write_now()

    # --- layout and service map ---

    def register_layout_callback(self, path: str, callback: LayoutCallback) -> None:
        """Call ``callback`` with the sub-graphs of a layout now and after each change.

        Args:
            path: Node of the layout; it is made if it does not exist.
            callback: Runs in a separate thread.
        """
        layout = _Layout(path, callback, self._watches, self._paths, self._bad_nodes, self._note_layout)
        with self._lock:
            self._layouts.append(layout)
        try:
            self._session.ensure(path)
        except ClusterError as error:
            logger.warning("layout node not made, waiting for it path=%s error=%s", path, error)
        layout.start()

    def follow_models(self, models: Iterable[str]) -> None:
        """Keep these models in the service map besides those of the layouts."""
        with self._lock:
            if self._followed == set(models):
                return
            self._followed = set(models)
        self._note_layout()

    def get_service_map(self) -> dict[str, dict[str, list[ContainerServiceInfo]]]:
        """Return model to sub-graph to the containers that serve it, for the models of the layouts."""
        return self._service_map.snapshot()

    def get_addresses(self, saved_model: SavedModel, *, use_archon: bool = False) -> list[str]:
        """Return the addresses of the containers that serve a sub-graph."""
        return self._service_map.addresses(saved_model, use_archon=use_archon)

    def close(self) -> None:
        """End threads and watches; the nodes end with the session."""
        self._session.remove_listener(self._note_state)
        self._writer.stop()
        for layout in self._layouts:
            layout.close()
        self._service_map.close()
        self._watches.close()

    # --- writing ---

    def _note_state(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._writer.wake()

    def _note_layout(self) -> None:
        with self._lock:
            layouts, followed = list(self._layouts), set(self._followed)
        self._service_map.track(followed.union(*(layout.models() for layout in layouts)))

    def _write_now(self) -> None:
        try:
            self._write()
        except ClusterError as error:
            logger.warning("container nodes not written, retrying retry_s=%g error=%s", _RETRY_S, error)
            self._writer.wake()

    def _write(self) -> None:
        """Make the own nodes equal to the wanted ones: service info first, then bindings."""
        with self._writing:
            if self._session.is_away:
                return  # the listener wakes the writer after the connection is back
            session_id = self._session.session_id
            with self._lock:
                if self._made_by != session_id:
                    self._made, self._made_by = {}, session_id
                wanted: dict[str, tuple[SavedModel | None, bytes]] = {}
                if self._info is not None:
                    wanted[self._info[0]] = (None, self._info[1])
                for path, model in sorted(self._wanted.items()):
                    wanted[path] = (model, b"")
                surplus = [path for path in reversed(self._made) if path not in wanted]
            self._put_missing(wanted, session_id)
            for path in surplus:
                delete_own(self._session, path)
                with self._lock:
                    self._made.pop(path, None)

    def _put_missing(self, wanted: dict[str, tuple[SavedModel | None, bytes]], session_id: int) -> None:
        paths = list(wanted)
        readings = self._session.get_all(paths) if paths else []
        for path, reading in zip(paths, readings, strict=True):
            model, content = wanted[path]
            is_there = reading is not None and reading[1].ephemeralOwner == session_id and reading[0] == content
            if not is_there:
                put_ephemeral(self._session, path, content)
            with self._lock:
                if self._made_by == session_id == self._session.session_id:
                    self._made[path] = model


class _Layout:
    """One layout: its children, their deploy configs, and the callback."""

    def __init__(
        self,
        path: str,
        callback: LayoutCallback,
        watches: NodeWatches,
        paths: NodePaths,
        bad_nodes: BadNodes,
        on_models: Callable[[], None],
    ) -> None:
        self._path = path
        self._callback = callback
        self._watches = watches
        self._paths = paths
        self._bad_nodes = bad_nodes
        self._on_models = on_models
        self._lock = threading.RLock()
        self._handle: WatchHandle | None = None
        self._configs: dict[SavedModel, SavedModelDeployConfig | None] = {}
        self._handles: dict[SavedModel, WatchHandle] = {}
        self._pending: set[SavedModel] = set()
        self._has_children = False
        self._delivered: list[LayoutEntry] | None = None
        self._caller = BackgroundLoop("agent-layout", self._deliver)

    def start(self) -> None:
        """Watch the layout."""
        self._caller.start(immediately=False)
        self._handle = self._watches.watch_children(self._path, self._note_children)

    def models(self) -> set[str]:
        """Return the models that the layout names."""
        with self._lock:
            return {saved_model.model_name for saved_model in self._handles}

    def close(self) -> None:
        """End watches and callbacks."""
        with self._lock:
            handles = [*self._handles.values(), *([self._handle] if self._handle else [])]
            self._handles.clear()
        for handle in handles:
            handle.close()
        self._caller.stop()

    def _note_children(self, names: list[str] | None) -> None:
        saved_models: set[SavedModel] = set()
        for name in names or ():
            saved_model = parse_saved_model(name)
            if saved_model is None:
                self._bad_nodes.report(f"{self._path}/{name}", None, "name is not <model>:<sub_graph>")
            else:
                saved_models.add(saved_model)
        with self._lock:
            self._has_children = True
            for gone in self._handles.keys() - saved_models:
                self._handles.pop(gone).close()
                self._configs.pop(gone, None)
                self._pending.discard(gone)
            for saved_model in sorted(saved_models - self._handles.keys(), key=sub_graph_order):
                self._pending.add(saved_model)
                self._handles[saved_model] = self._watches.watch_data(
                    self._paths.saved_model(saved_model), partial(self._note_config, saved_model)
                )
        self._on_models()
        self._caller.wake()

    def _note_config(self, saved_model: SavedModel, content: bytes | None, _: NodeStat | None) -> None:
        path = self._paths.saved_model(saved_model)
        config: SavedModelDeployConfig | None = None
        if content is None:
            self._bad_nodes.report(path, None, f"missing deploy config for saved model {saved_model}")
        else:
            try:
                config = SavedModelDeployConfig.from_bytes(content)
                if not config.model_base_path:
                    raise RecordInvalid("SavedModelDeployConfig.model_base_path is not set")
            except RecordInvalid as error:
                config = None
                self._bad_nodes.report(path, content, error)
            else:
                self._bad_nodes.forget(path)
        with self._lock:
            if saved_model not in self._handles:
                return
            self._pending.discard(saved_model)
            self._configs[saved_model] = config
        self._caller.wake()

    def _deliver(self) -> None:
        with self._lock:
            if self._pending or not self._has_children:
                return
            entries = [
                (saved_model, config)
                for saved_model, config in sorted(self._configs.items(), key=lambda item: sub_graph_order(item[0]))
                if config is not None
            ]
            if entries == self._delivered:
                return
        result = self._callback(entries)
        with self._lock:
            self._delivered = entries
        if result is False:
            self.close()
