"""Run a version 2 agent: many models per container, placed by an elected leader.

Main types: ``ScheduledAgent``; ``Leader``, which turns wanted models into publishes; ``ScheduledAddressBook``.

Invariants: an entry agent never leads. Leadership ends with the session and at suspension; every publish checks the
election node in its transaction. A running placement is not moved for a better one. A model that does not fit is
logged once per change and tried again when resources change.

Threading: one thread consumes events; one thread reports states each second and resources each 10 s.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from typing_extensions import override

from monolith.agent.address_service import AddressBook, AddressService
from monolith.agent.addresses_file import AddressesFile
from monolith.agent.background import BackgroundLoop
from monolith.agent.config import AgentConfig
from monolith.agent.fixed_agent import MakeTypedServer, stop_order
from monolith.agent.hosts import OwnHost
from monolith.agent.metrics import AgentMetrics
from monolith.agent.mirror import Mirror
from monolith.agent.model_loader import ModelLoader, replica_number
from monolith.agent.model_sizes import SubModelSize, measure_model
from monolith.agent.records import Event, EventType, ModelMeta, ReplicaMeta, ResourceSpec, ServerType, state_name
from monolith.agent.resources import ResourceReader
from monolith.agent.scheduler import placement_is_current, plan_publishes
from monolith.agent.server_monitor import ServerMonitor, served_types
from monolith.agent.settings import DeployType
from monolith.core.errors import ClusterError, ConfigError, MonolithError
from monolith.discovery.address import join_address
from monolith.discovery.zookeeper_election import Election
from monolith.discovery.zookeeper_nodes import delete_own
from monolith.discovery.zookeeper_session import SessionState, ZooKeeperSession

__all__ = ["Leader", "ScheduledAddressBook", "ScheduledAgent"]

logger = logging.getLogger(__name__)

_STATUS_S = 1.0
_RESOURCE_S = 10.0
_NOTICE_S = 1.0


class Leader:
    """Schedules wanted models while its candidate leads.

    Args:
        mirror: Nodes of the bzid.
        election: The candidate.
        dense_alone: Whether dense sub-models run on dedicated servers.
        measure: Returns the sizes of an export.
    """

    def __init__(
        self,
        mirror: Mirror,
        election: Election,
        *,
        dense_alone: bool = False,
        measure: Callable[[str, str | None], Mapping[str, SubModelSize]] = measure_model,
    ) -> None:
        self._mirror = mirror
        self._election = election
        self._dense_alone = dense_alone
        self._measure = measure
        self._refused: dict[str, str] = {}

    @property
    def refused(self) -> dict[str, str]:
        """Models that could not be placed, with the reason."""
        return dict(self._refused)

    def schedule(self, model: ModelMeta, *, keeps_running: bool) -> None:
        """Place one wanted model.

        Args:
            model: The model.
            keeps_running: Whether a complete placement on existing shards stays as it is.
        """
        name = model.model_name or ""
        node = self._election.node_path
        if not self._election.is_leader or node is None:
            return
        shards = {spec.shard_id for spec in self._mirror.resources if spec.shard_id is not None}
        if keeps_running and placement_is_current(self._mirror.publishes(name), shards):
            return
        try:
            sizes = self._measure(model.model_dir or "", model.ckpt)
            metas = plan_publishes(
                model, sizes, self._mirror.resources, promised=self._promised(name), dense_alone=self._dense_alone
            )
        except (ConfigError, MonolithError) as error:
            if self._refused.get(name) != str(error):
                self._refused[name] = str(error)
                logger.warning("model not placed, waiting for resources model=%s error=%s", name, error)
            return
        self._refused.pop(name, None)
        self._mirror.publish_loading(metas, leader_node=node, model_name=name)
        logger.info("model placed model=%s publishes=%d", name, len(metas))

    def remove(self, name: str) -> None:
        """Delete all publishes of a model."""
        node = self._election.node_path
        if self._election.is_leader and node is not None:
            self._refused.pop(name, None)
            self._mirror.publish_loading([], leader_node=node, model_name=name)
            logger.info("model removed model=%s", name)

    def schedule_all(self) -> None:
        """Place every wanted model that has no complete placement."""
        for model in self._mirror.portal().values():
            self.schedule(model, keeps_running=True)

    def _promised(self, name: str) -> dict[int, int]:
        """Return the bytes per shard that publishes of other models promised and that are not AVAILABLE yet."""
        promised: dict[int, dict[str, int]] = {}
        sizes: dict[str, Mapping[str, SubModelSize]] = {}
        wanted = {model: meta for model, meta in self._mirror.portal().items() if model != name}
        for publish in self._mirror.publishes():
            model = publish.model_name or ""
            if model not in wanted or publish.shard_id is None:
                continue
            if model not in sizes:
                try:
                    sizes[model] = self._measure(wanted[model].model_dir or "", wanted[model].ckpt)
                except MonolithError:
                    sizes[model] = {}
            for sub_model in publish.sub_models or {}:
                kind, _, index = sub_model.partition("_")
                task = int(index) if index.isdigit() else 0
                replica = publish.replica_id if publish.replica_id is not None else -1
                number = replica_number(kind, publish.shard_id, replica)
                meta = self._mirror.get_replica(model, kind, task, number)
                if meta is None and sub_model in sizes[model]:
                    by_name = promised.setdefault(publish.shard_id, {})
                    by_name[f"{model}:{sub_model}"] = sizes[model][sub_model].bytes
        return {shard: sum(each.values()) for shard, each in promised.items()}


class ScheduledAddressBook(AddressBook):
    """Addresses of a version 2 agent: all models, by ``<model>:<type>:<task>``."""

    def __init__(self, mirror: Mirror, resource: Callable[[], ResourceSpec]) -> None:
        self._mirror = mirror
        self._resource = resource

    @override
    def heartbeat(self, server_type: ServerType) -> Mapping[str, Sequence[str]]:
        return {
            key: sorted({address for meta in metas if (address := meta.get_address())})
            for key, metas in self._mirror.get_all_replicas(server_type).items()
        }

    @override
    def replicas(self, server_type: ServerType, task: int, model_name: str) -> Sequence[str] | None:
        metas = self._mirror.get_task_replicas(model_name, server_type, task)
        return sorted({address for meta in metas if (address := meta.get_address())})

    @override
    def resource(self) -> ResourceSpec | None:
        return self._resource()

    def part_addresses(self) -> dict[str, list[str]]:
        """Return the addresses of ps and dense sub-models by ``<model>:<sub_model>``, for the entry."""
        result: dict[str, list[str]] = {}
        for kind in (ServerType.PS, ServerType.DENSE):
            for key, addresses in self.heartbeat(kind).items():
                model, _, task = key.partition(":")
                result[f"{model}:{task.replace(':', '_')}"] = list(addresses)
        return result


class ScheduledAgent:
    """The agent of one container.

    Args:
        config: A checked configuration of version 2, with ports.
        session: A started session; the caller stops it.
        host: Own addresses.
        make_server: Makes a server of a type.
        addresses_file: File for the entry.
        free_bytes: Returns the free memory to report; None = that of the container.
        measure: Returns the sizes of an export.
        metrics: Receives counters and gauges.
    """

    def __init__(
        self,
        config: AgentConfig,
        session: ZooKeeperSession,
        host: OwnHost,
        make_server: MakeTypedServer,
        *,
        addresses_file: Path,
        free_bytes: Callable[[], int] | None = None,
        measure: Callable[[str, str | None], Mapping[str, SubModelSize]] = measure_model,
        metrics: AgentMetrics | None = None,
    ) -> None:
        self._config = config
        self._session = session
        self._host = host
        self._metrics = metrics or AgentMetrics()
        self._free_bytes = free_bytes or ResourceReader(config.environment).available_memory
        self._failure: str | None = None
        self._stopping = threading.Event()
        self._events: queue.Queue[Event] = queue.Queue()
        is_entry = config.service.deploy_type is DeployType.ENTRY
        self._shard_id = -1 if is_entry or config.shard_id is None else config.shard_id
        self._metas: list[ReplicaMeta] = []
        self._replica_id = -1 if config.service.replica_id is None else config.service.replica_id
        if self._replica_id < 0:
            number = session.create(f"{config.paths.locks}/replica_id", ephemeral=True, sequence=True)
            self._replica_id = int(number[-10:])
            logger.info("replica id taken from ZooKeeper replica_id=%d", self._replica_id)
        self.mirror = Mirror(
            session,
            config.service.bzid or "",
            self._events,
            shard_id=self._shard_id,
            shard_count=config.shard_count,
            replica_id=self._replica_id,
            on_service=self._note_service,
        )
        """Nodes of the bzid."""
        self._book = ScheduledAddressBook(self.mirror, self._read_resource)
        self._service = AddressService(self._book, join_address(host.listen_address, config.ports.agent_port or 0))
        self._addresses = AddressesFile(addresses_file, self._book.part_addresses)
        self._servers = {
            kind: make_server(kind, self._note_server_end, self._note_final) for kind in served_types(config)
        }
        self._monitor = ServerMonitor(config, host.name)
        self.loader = ModelLoader(config, host, self._monitor, self._servers)
        """Models of the own servers."""
        name = config.environment.host.pod_name or f"{host.name}:{config.ports.agent_port}"
        self._election = Election(session, self.mirror.paths.election, name, on_change=self._note_leadership)
        self._is_candidate = not is_entry
        self._leader = Leader(self.mirror, self._election, dense_alone=config.dense.dense_alone, measure=measure)
        self._consumer = threading.Thread(target=self._consume, name="agent-events", daemon=True)
        self._status = BackgroundLoop("agent-status", self._report_states, interval_s=_STATUS_S)
        self._resource = BackgroundLoop("agent-resource", self._report_resource, interval_s=_RESOURCE_S)

    @property
    def failure(self) -> str | None:
        """Reason why the agent must end; None while it may run."""
        return self._failure

    @property
    def port(self) -> int:
        """Port of the agent's service."""
        return self._service.port

    @property
    def is_leader(self) -> bool:
        """True while this agent schedules."""
        return self._election.is_leader

    def start(self) -> None:
        """Start servers, mirror, service, election and reports."""
        self._addresses.start()
        for server in self._servers.values():
            server.start()
        self._session.add_listener(self._note_state)
        self.mirror.start()
        self._service.start()
        self._consumer.start()
        self._resource.start()
        self._status.start()
        if self._is_candidate:
            self._election.join()
        self._metrics.watch(self._sample)
        logger.info("agent started version=2 shard=%d replica=%d", self._shard_id, self._replica_id)

    def stop(self, *, is_urgent: Callable[[], bool] = lambda: False) -> None:
        """Withdraw candidate and nodes, wait until entries noticed, then stop the servers."""
        self._stopping.set()
        self._session.remove_listener(self._note_state)
        if self._is_candidate:
            self._election.leave()
        self._events.put(Event(""))
        self._status.stop()
        self._resource.stop()
        try:
            self.mirror.update_service([])
            delete_own(self._session, self._read_resource().get_path(self.mirror.paths.resource))
        except MonolithError as error:
            logger.debug("nodes not withdrawn, they end with the session error=%s", error)
        if not is_urgent():
            threading.Event().wait(_NOTICE_S)
        for kind in stop_order(self._config):
            self._servers[kind].stop(is_urgent=is_urgent)
        self._service.stop()
        self._addresses.stop()
        self._monitor.close()
        self.mirror.close()

    # --- events ---

    def _consume(self) -> None:
        while not self._stopping.is_set():
            event = self._events.get()
            try:
                self._handle(event)
            except (MonolithError, OSError) as error:
                logger.warning("event not handled, retrying path=%s error=%s", event.path, error)
                if self._stopping.wait(1.0):
                    return
                if event.etype is EventType.PUBLISH or self._election.is_leader:
                    self._events.put(event)
            except Exception:
                logger.exception("event failed path=%s", event.path)

    def _handle(self, event: Event) -> None:
        if not event.path:
            return
        if event.etype is EventType.PUBLISH:
            self._load_expected()
        elif event.etype is EventType.RESOURCE:
            self._leader.schedule_all()
        elif event.etype is EventType.PORTAL:
            meta = ModelMeta.from_bytes(event.data)
            if meta.action == "DELETED":
                self._leader.remove(meta.model_name or "")
            else:
                self._leader.schedule(meta, keeps_running=meta.action == "NONE")

    def _load_expected(self) -> None:
        expected = self.mirror.expected_loading()
        # An incomplete set of publishes changes nothing: the models that are loaded stay.
        published = {meta.model_name for meta in self.mirror.publishes()}
        for name, publish in self.loader.expected.items():
            if name not in expected and name in published:
                expected[name] = publish
        self.loader.load(expected)

    # --- reports ---

    def _report_states(self) -> None:
        self._metas = self.loader.replica_metas(self._shard_id, self._replica_id)
        self.mirror.update_service(self._metas)

    def _note_service(self) -> None:
        self._addresses.wake()

    def _report_resource(self) -> None:
        self.mirror.report_resource(self._read_resource())
        if self._election.is_leader:
            self._events.put(Event(self.mirror.paths.resource, b"", EventType.RESOURCE))

    def _read_resource(self) -> ResourceSpec:
        return ResourceSpec(
            address=self._host.reachable_address(self._config.ports.agent_port or 0),
            shard_id=self._shard_id,
            replica_id=self._replica_id,
            memory=self._free_bytes(),
        )

    # --- leadership and failures ---

    def _note_leadership(self, is_leader: bool) -> None:
        if not is_leader:
            self.mirror.unwatch_portal()
            return
        while self._election.is_leader and not self._stopping.is_set():
            try:
                self.mirror.watch_resource()
                self.mirror.watch_portal()
                return
            except ClusterError as error:
                logger.warning("portal not watched, retrying error=%s", error)
                if self._stopping.wait(1.0):
                    return

    def _note_server_end(self) -> None:
        self._status.wake()

    def _note_final(self, reason: str) -> None:
        self._failure = reason

    def _note_state(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._metrics.count_lost_session()
        elif state is SessionState.CONNECTED:
            self._resource.wake()
            self._status.wake()

    def _sample(self) -> Mapping[str, object]:
        counts: dict[str, int] = {}
        for server in self._servers.values():
            for key, value in server.counts.items():
                counts[key] = counts.get(key, 0) + value
        return {
            "own": [state_name(meta.stat) for meta in self._metas],
            "known": {key: len(addresses) for key, addresses in self._book.part_addresses().items()},
            "map_age_s": self._addresses.age_s,
            "heartbeat_age_s": self._service.seconds_since_heartbeat,
            "unfit": len(self._leader.refused),
            "is_leader": int(self.is_leader),
            **counts,
        }
