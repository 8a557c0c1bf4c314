"""Run a version 3 agent: one unified server that serves the sub-graphs of a layout.

Main type: ``LayoutAgent``. It turns the layout into the models of its server, publishes the sub-graphs that are
AVAILABLE as bindings, and writes the addresses of all sub-graphs for its entry.

Invariants: a sub-graph is bound only while the server reports it AVAILABLE; an end of the server removes all bindings
immediately. A sub-graph that leaves the layout is unbound first, and unloaded after the entries had time to notice.
A declared ``latest_once`` becomes the versions that ``VersionMoves`` chooses.

Threading: one thread changes models, one thread reads states; watches and calls have their own threads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from monolith.agent.address_service import AddressService, LayoutAddressBook
from monolith.agent.addresses_file import AddressesFile
from monolith.agent.background import BackgroundLoop
from monolith.agent.bindings import Bindings, LayoutEntry
from monolith.agent.config import AgentConfig
from monolith.agent.containers import make_container, make_service_info
from monolith.agent.export_names import find_sub_models, read_model_name
from monolith.agent.hosts import OwnHost
from monolith.agent.messages import ModelConfig, ModelVersionStatus
from monolith.agent.metrics import AgentMetrics
from monolith.agent.model_configs import make_model_config, make_server_config
from monolith.agent.node_paths import parse_saved_model
from monolith.agent.records import ModelState, ResourceSpec, SavedModel, SavedModelDeployConfig, sub_graph_order
from monolith.agent.resources import ResourceReader
from monolith.agent.server_monitor import ServerClient
from monolith.agent.server_process import ServerControl
from monolith.agent.version_moves import VersionMoves
from monolith.core.config_sections import replace_settings
from monolith.core.errors import ConfigError, MonolithError
from monolith.discovery.address import join_address
from monolith.discovery.zookeeper_session import SessionState, ZooKeeperSession

__all__ = ["NOTICE_S", "LayoutAgent", "MakeServer"]

logger = logging.getLogger(__name__)

MakeServer = Callable[[Callable[[], None], Callable[[str], None]], ServerControl]
"""Makes the server from ``on_end`` and ``on_final``."""

NOTICE_S = 1.0
"""Seconds between the end of a binding and the end of the service, so that entries ask another replica."""
_STATUS_S = 0.2
_ROUNDS_WHILE_STABLE = 5
_FOLDER_POLL_S = 10.0


class LayoutAgent:
    """The agent of one container.

    Args:
        config: A checked configuration of version 3, with ports.
        session: A started session; the caller stops it.
        host: Own addresses.
        make_server: Makes the server.
        addresses_file: File for the entry.
        is_foreign: Whether the server is a ``tensorflow_model_server``.
        use_archon: Whether archon addresses are handed out.
        notice_s: Pause between the end of a binding and the end of its service.
        metrics: Receives counters and gauges.
    """

    def __init__(
        self,
        config: AgentConfig,
        session: ZooKeeperSession,
        host: OwnHost,
        make_server: MakeServer,
        *,
        addresses_file: Path,
        is_foreign: bool = False,
        use_archon: bool = False,
        notice_s: float = NOTICE_S,
        metrics: AgentMetrics | None = None,
    ) -> None:
        self._config = config
        self._session = session
        self._is_foreign = is_foreign
        self._notice_s = notice_s
        self._metrics = metrics or AgentMetrics()
        self._filters = config.make_layout_filters()
        self._resources = ResourceReader(config.environment)
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._failure: str | None = None
        self._entries: dict[SavedModel, SavedModelDeployConfig] = {}
        self._leaving: set[SavedModel] = set()
        self._available: frozenset[SavedModel] = frozenset()
        self._states: dict[str, ModelVersionStatus] = {}
        self._quiet_rounds = 0
        self._refused: dict[SavedModel, str] = {}
        self._clients: dict[str, ServerClient] = {}
        self.container = make_container(config, host)
        self.service_info = make_service_info(config, host)
        self._bindings = Bindings(session, config.service.bzid or "", on_service_map=self._note_service_map)
        self._book = LayoutAddressBook(self._bindings, use_archon=use_archon, resource=self._read_resource)
        self._service = AddressService(self._book, join_address(host.listen_address, config.ports.agent_port or 0))
        self._addresses = AddressesFile(addresses_file, self._book.addresses)
        self._moves = VersionMoves(
            entry_addresses=self._entry_addresses, ask=self._ask_status, free_bytes=self._resources.available_memory
        )
        self._server = make_server(self._note_server_end, self._note_final)
        poll_s = max(config.server.loading.file_system_poll_wait_seconds, 0) or None
        self._models = BackgroundLoop("agent-models", self._update_models, interval_s=poll_s)
        self._status = BackgroundLoop("agent-status", self._update_status, interval_s=_STATUS_S)
        self._folder = BackgroundLoop("agent-folder", self._read_folder, interval_s=_FOLDER_POLL_S)
        session.add_listener(self._note_state)

    # --- life ---

    @property
    def failure(self) -> str | None:
        """Reason why the agent must end; None while it may run."""
        return self._failure

    @property
    def port(self) -> int:
        """Port of the agent's service."""
        return self._service.port

    @property
    def bindings(self) -> Bindings:
        """The nodes of this container."""
        return self._bindings

    def start(self) -> None:
        """Start server, service, nodes and loops."""
        self._addresses.start()
        self._server.start()
        self._service.start()
        self._bindings.report_service_info(self.container, self.service_info)
        self._models.start(immediately=False)
        self._status.start()
        path = self._config.layout_path
        if path is None:
            self._folder.start()
        else:
            self._bindings.register_layout_callback(path, self._apply_layout)
        self._metrics.watch(self._sample)
        logger.info(
            "agent started version=3 container=%s grpc=%s agent=%s layout=%s",
            self.container,
            self.service_info.grpc,
            self.service_info.agent,
            path,
        )

    def stop(self, *, is_urgent: Callable[[], bool] = lambda: False) -> None:
        """Withdraw the nodes, wait until entries noticed, then stop server and service."""
        self._stopping.set()
        self._session.remove_listener(self._note_state)
        for loop in (self._folder, self._models, self._status):
            loop.stop()
        try:
            had_bindings = bool(self._bindings.available)
            self._bindings.withdraw()
            if had_bindings and not is_urgent():
                threading.Event().wait(self._notice_s)
        except MonolithError as error:
            logger.warning("nodes not withdrawn, they end with the session error=%s", error)
        self._server.stop(is_urgent=is_urgent)
        self._service.stop()
        self._addresses.stop()
        self._bindings.close()
        for client in self._clients.values():
            client.close()

    def sync_available(self) -> None:
        """Read the states of the server's models and publish those that are AVAILABLE, now."""
        self._states = self._server.list_saved_models_status()
        available = {
            saved_model
            for name, status in self._states.items()
            if int(status.state) == ModelState.AVAILABLE and (saved_model := parse_saved_model(name)) is not None
        }
        with self._lock:
            if self._stopping.is_set():
                return
            self._publish(available & self._entries.keys() - self._leaving)

    # --- layout to models ---

    def _apply_layout(self, entries: list[LayoutEntry]) -> bool:
        with self._lock:
            self._entries = {model: config for model, config in entries if self._filters.accepts(model.sub_graph)}
        self._models.wake()
        return True

    def _read_folder(self) -> None:
        """Serve all sub-models of ``base_path``, where no layout is configured."""
        base = self._config.service.base_path or ""
        model = self._config.service.base_name or read_model_name(base)
        if model is None:
            raise ConfigError(f"base_path is {base!r} without an entry that names the model; set base_name")
        entries = {
            SavedModel(model, name): SavedModelDeployConfig(
                f"{base}/{name}", "latest" if name == "entry" else "latest_once"
            )
            for name in find_sub_models(base, field="base_path")
            if self._filters.accepts(name)
        }
        self._bindings.follow_models({model})
        with self._lock:
            if entries == self._entries:
                return
            self._entries = entries
        self._models.wake()

    def _update_models(self) -> None:
        with self._lock:
            entries = dict(self._entries)
            served = {model for name in self._server.list_saved_models() if (model := parse_saved_model(name))}
            self._leaving = served - entries.keys()
            must_wait = bool(self._leaving & self._available)
            if must_wait:
                self._publish(self._available - self._leaving)
        if must_wait and self._stopping.wait(self._notice_s):
            return
        configs: list[ModelConfig] = []
        for saved_model in sorted(entries, key=sub_graph_order):
            try:
                configs.append(self._model_config(saved_model, entries[saved_model]))
            except ConfigError as error:
                if self._refused.get(saved_model) != str(error):
                    self._refused[saved_model] = str(error)
                    logger.warning("sub-graph not served saved_model=%s error=%s", saved_model, error)
        self._moves.forget(entries)
        self._server.set_models(make_server_config(configs))
        with self._lock:
            self._leaving = set()
            self._quiet_rounds = 0
        self._status.wake()

    def _model_config(self, saved_model: SavedModel, deploy: SavedModelDeployConfig) -> ModelConfig:
        name, base_path = str(saved_model), deploy.model_base_path or ""
        policy = (deploy.version_policy or "latest").lower()
        if policy == "latest_once" and not self._is_foreign:
            versions = self._moves.choose(saved_model, base_path)
            if versions:
                return make_model_config(name, base_path, version_policy="specific", version_data=versions)
        return make_model_config(name, base_path, version_policy=policy, is_foreign=self._is_foreign)

    # --- states to bindings ---

    def _update_status(self) -> None:
        names = self._server.list_saved_models()
        is_stable = len(self._available) == len(names)
        self._quiet_rounds += 1
        if is_stable and self._quiet_rounds < _ROUNDS_WHILE_STABLE:
            return
        self._quiet_rounds = 0
        self.sync_available()

    def _publish(self, available: Iterable[SavedModel]) -> None:
        wanted = frozenset(available)
        if wanted == self._available:
            return
        logger.info("bindings changed available=%s", sorted(map(str, wanted)))
        self._available = wanted
        self._bindings.sync_available_saved_models(self.container, wanted)

    def _note_server_end(self) -> None:
        with self._lock:
            if not self._stopping.is_set():
                self._publish(())

    def _note_final(self, reason: str) -> None:
        self._failure = reason

    def _note_state(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._metrics.count_lost_session()

    # --- addresses ---

    def _note_service_map(self) -> None:
        self._addresses.wake()

    def _entry_addresses(self, model_name: str) -> list[str]:
        return self._bindings.get_addresses(SavedModel(model_name, "entry"))

    def _ask_status(self, address: str, name: str) -> list[ModelVersionStatus]:
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = ServerClient(address)
        return client.model_status(name)

    def _read_resource(self) -> ResourceSpec:
        return ResourceSpec(
            address=self.service_info.agent,
            shard_id=-1 if self._config.shard_id is None else self._config.shard_id,
            replica_id=self._config.service.replica_id,
            memory=self._resources.available_memory(),
        )

    def _sample(self) -> dict[str, object]:
        """Return the values of the metrics page."""
        counts = getattr(self._server, "counts", {})
        return {
            "own": [ModelState(int(status.state)).name for status in self._states.values()],
            "known": {key: len(addresses) for key, addresses in self._book.addresses().items()},
            "map_age_s": self._addresses.age_s,
            "heartbeat_age_s": self._service.seconds_since_heartbeat,
            "unfit": len(self._moves.refused),
            "versions": {name: status.version for name, status in self._states.items() if status.version >= 0},
            **counts,
        }


def with_quick_retries(config: AgentConfig) -> AgentConfig:
    """Return the configuration whose servers repeat a failed load each second, unless the file sets the retries.

    An entry can load only after its shards did, which the server learns by trying.
    """
    changes: dict[str, int] = {}
    if not config.is_given("load_retry_interval_micros"):
        changes["load_retry_interval_micros"] = 1_000_000
    if not config.is_given("max_num_load_retries"):
        changes["max_num_load_retries"] = 1_000_000
    return replace_settings(config, **changes)
