"""Mirror the version 2 nodes of a bzid and turn their changes into events.

Main type: ``Mirror``. It caches ``/publish`` and ``/service``, and for the leader ``/resource`` and ``/portal``, and
puts events into a queue: PORTAL (a wanted model changed) and PUBLISH (the publishes of a model are complete or gone).

Invariants: names are compared as whole path elements. A CHANGED node is applied like a CREATED one. Nodes that are
invalid are logged once and ignored. Writes that need leadership check the election node in the same transaction.

Threading: watches call from one thread; all other methods may be called from any thread. The queue has one consumer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from monolith.agent.expected_loading import expected_loading, publish_defect
from monolith.agent.node_paths import NodePaths, ServicePath
from monolith.agent.records import (
    BadNodes,
    Event,
    EventType,
    ModelMeta,
    ModelState,
    PublishMeta,
    PublishType,
    Record,
    RecordInvalid,
    ReplicaMeta,
    ResourceSpec,
)
from monolith.core.clock import Clock, Deadline, SystemClock
from monolith.core.errors import ClusterError, ConfigError
from monolith.discovery.zookeeper_nodes import delete_if_present, delete_own, delete_tree, put, put_ephemeral
from monolith.discovery.zookeeper_session import (
    CheckNode,
    CreateNode,
    DeleteNode,
    NodeMissing,
    NodeStat,
    Operation,
    SetNode,
    ZooKeeperSession,
)
from monolith.discovery.zookeeper_watches import NodeWatches, WatchHandle

__all__ = ["Mirror"]

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=Record)


class Mirror:
    """The version 2 nodes of one bzid, seen by one agent.

    Args:
        session: A session; the caller starts and stops it.
        bzid: Namespace.
        events: Queue for events; None = no consumer.
        shard_id: Own shard; -1 for an entry agent or a client.
        shard_count: Number of shards.
        replica_id: Own replica.
        on_service: Called in the thread of the watches after a replica changed; it must return soon.
        clock: Measures waits.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        bzid: str,
        events: queue.Queue[Event] | None = None,
        *,
        shard_id: int = -1,
        shard_count: int = 1,
        replica_id: int = -1,
        on_service: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self._session = session
        self._on_service = on_service
        self._bzid = bzid
        self.paths = NodePaths(bzid)
        """Builders of the node paths."""
        self._events = events if events is not None else queue.Queue()
        self.shard_id = shard_id
        self.shard_count = shard_count
        self.replica_id = replica_id
        self._clock = clock or SystemClock()
        self._bad_nodes = BadNodes()
        self._lock = threading.RLock()
        self._own_paths: set[str] = set()
        self._cache: dict[str, bytes] = {}
        self._parsed: dict[str, Record | None] = {}
        self._children: dict[str, set[str]] = {}
        self._portal: dict[str, WatchHandle] = {}
        self._seen_portal: dict[str, bytes | None] = {}
        self._folders: dict[str, WatchHandle] = {}
        self._nodes: dict[str, WatchHandle] = {}
        self._watches = NodeWatches(session, name="agent-mirror")

    # --- nodes ---

    def ensure_path(self, path: str) -> None:
        """Make a persistent node and its parents."""
        self._session.ensure(path)

    def create(self, path: str, value: bytes = b"", *, ephemeral: bool = False) -> None:
        """Make a node with its parents, or set its content."""
        (put_ephemeral if ephemeral else put)(self._session, path, value)

    def set(self, path: str, value: bytes) -> None:
        """Set the content of a node; a missing node is made."""
        put(self._session, path, value)

    def exists(self, path: str) -> bool:
        """Return True if a node exists; while ZooKeeper is away, whether the cache has it."""
        try:
            return self._session.exists(path) is not None
        except ClusterError:
            with self._lock:
                return path in self._cache

    def delete(self, path: str) -> None:
        """Delete a node and all below it; a missing node is fine."""
        delete_tree(self._session, path)

    def get(self, path: str) -> bytes | None:
        """Return the content of a cached node."""
        with self._lock:
            return self._cache.get(path)

    def get_children(self, path: str) -> list[str]:
        """Return the names one level below a path, from the cache, each once."""
        prefix = f"{path.rstrip('/')}/"
        with self._lock:
            return sorted({each[len(prefix) :].partition("/")[0] for each in self._cache if each.startswith(prefix)})

    # --- watches ---

    def start(self, *, is_client: bool = False) -> None:
        """Watch services, and publishes unless this is a client."""
        self.watch_service()
        if not is_client:
            self.watch_publish()

    def watch_service(self) -> None:
        """Follow the replicas of all models."""
        self._follow_folder(self.paths.services, depth=4)

    def watch_publish(self) -> None:
        """Follow the publishes."""
        self._follow_folder(self.paths.publish, depth=1)

    def watch_resource(self) -> None:
        """Follow the resources of hosts; for the leader."""
        self._follow_folder(self.paths.resource, depth=1)

    def watch_portal(self) -> None:
        """Follow the wanted models; publishes of models that are not wanted any more are deleted. For the leader."""
        self._ensure(self.paths.portal)
        self._ensure(self.paths.publish)
        wanted = set(self._session.children(self.paths.portal))
        for name in self._session.children(self.paths.publish):
            if name.split(":", 2)[-1] not in wanted:
                delete_if_present(self._session, f"{self.paths.publish}/{name}")
        with self._lock:
            self._folders[self.paths.portal] = self._watches.watch_children(self.paths.portal, self._note_portal)

    def unwatch_portal(self) -> None:
        """Stop following wanted models and resources, after the end of leadership."""
        with self._lock:
            for path in (self.paths.portal, self.paths.resource):
                handle = self._folders.pop(path, None)
                if handle is not None:
                    handle.close()
            for each in self._portal.values():
                each.close()
            self._portal.clear()
            self._seen_portal.clear()
            for path in [each for each in self._nodes if each.startswith(f"{self.paths.resource}/")]:
                self._drop(path)
            self._children.pop(self.paths.resource, None)

    def close(self) -> None:
        """End all watches."""
        self._watches.close()

    # --- resources ---

    def report_resource(self, spec: ResourceSpec) -> None:
        """Keep the own resources in ZooKeeper for this session."""
        path = spec.get_path(self.paths.resource)
        content = spec.to_bytes()
        put_ephemeral(self._session, path, content)

    @property
    def resources(self) -> list[ResourceSpec]:
        """Resources of all hosts."""
        return [spec for _, spec in self._records(self.paths.resource, ResourceSpec)]

    def num_tce_replica(self, timeout_s: float) -> int:
        """Wait until each replica id has the resources of all shards; return the number of replica ids.

        Raises:
            ConfigError: The wait took longer than ``timeout_s``.
        """
        deadline = Deadline(self._clock, timeout_s)
        while True:
            shards: dict[int, set[int]] = {}
            for spec in self.resources:
                if spec.replica_id not in (None, -1) and spec.shard_id is not None and spec.shard_id >= 0:
                    shards.setdefault(spec.replica_id, set()).add(spec.shard_id)
            if shards and all(len(each) == self.shard_count for each in shards.values()):
                return len(shards)
            if deadline.is_past:
                raise ConfigError(
                    f"replicas with all {self.shard_count} shards are {sorted(shards)} after {timeout_s:g} s, expected "
                    "every replica to have all; start the missing hosts"
                )
            self._clock.sleep_s(min(0.2, timeout_s))

    # --- publishes ---

    def publishes(self, model_name: str | None = None) -> list[PublishMeta]:
        """Return the cached publishes that load, of one model or of all."""
        return [
            meta
            for _, meta in self._records(self.paths.publish, PublishMeta)
            if meta.ptype == PublishType.LOAD and (model_name is None or meta.model_name == model_name)
        ]

    def get_published_path(self, model_name: str) -> list[str]:
        """Return the publish nodes of a model."""
        return [path for path, meta in self._records(self.paths.publish, PublishMeta) if meta.model_name == model_name]

    def publish_loading(
        self, metas: Sequence[PublishMeta], *, leader_node: str | None = None, model_name: str | None = None
    ) -> None:
        """Write publishes in one transaction, and delete those of the model that are not wanted any more.

        Args:
            metas: The publishes; empty = delete all of ``model_name``.
            leader_node: Election node that must exist still; None = no check.
            model_name: Model whose other publishes are deleted; None = delete none.

        Raises:
            NodeMissing: The leadership ended.
        """
        wanted = {meta.get_path(self.paths.publish): meta.to_bytes() for meta in metas}
        self._ensure(self.paths.publish)
        present = {f"{self.paths.publish}/{name}" for name in self._session.children(self.paths.publish)}
        contents = self._session.get_all([path for path in wanted if path in present])
        known = dict(zip([path for path in wanted if path in present], contents, strict=True))
        operations: list[Operation] = [] if leader_node is None else [CheckNode(leader_node)]
        checks = len(operations)
        for path, content in wanted.items():
            reading = known.get(path)
            if reading is None:
                operations.append(CreateNode(path, content))
            elif reading[0] != content:
                operations.append(SetNode(path, content))
        if model_name is not None:
            operations += [
                DeleteNode(path)
                for path in sorted(present)
                if path not in wanted and path.rpartition("/")[2].split(":", 2)[-1] == model_name
            ]
        if len(operations) > checks:
            self._session.commit(operations)

    def expected_loading(self) -> dict[str, PublishMeta]:
        """Return the publish that this host shall load of each model."""
        metas = [meta for _, meta in self._records(self.paths.publish, PublishMeta)]
        return expected_loading(metas, self.shard_id, self.replica_id)

    # --- services ---

    def update_service(self, replicas: Iterable[ReplicaMeta]) -> None:
        """Make the replica nodes of this host equal to ``replicas``; nodes that other hosts made stay."""
        wanted = {meta.get_path(self._bzid): meta.to_bytes() for meta in replicas}
        owner = self._session.session_id
        paths = list(wanted)
        for path, reading in zip(paths, self._session.get_all(paths) if paths else [], strict=True):
            if reading is None or reading[0] != wanted[path] or reading[1].ephemeralOwner != owner:
                put_ephemeral(self._session, path, wanted[path])
            self._own_paths.add(path)
        for path in sorted(self._own_paths - wanted.keys()):
            delete_own(self._session, path)
            self._own_paths.discard(path)

    def get_all_replicas(self, server_type: str) -> dict[str, list[ReplicaMeta]]:
        """Return AVAILABLE replicas of all models by ``<model>:<type>:<task>``."""
        return self._replicas(server_type, None)

    def get_model_replicas(self, model_name: str, server_type: str) -> dict[str, list[ReplicaMeta]]:
        """Return AVAILABLE replicas of one model by ``<model>:<type>:<task>``."""
        return self._replicas(server_type, model_name)

    def get_task_replicas(self, model_name: str, server_type: str, task: int) -> list[ReplicaMeta]:
        """Return AVAILABLE replicas of one task."""
        return self._replicas(server_type, model_name).get(f"{model_name}:{server_type}:{task}", [])

    def get_replica(self, model_name: str, server_type: str, task: int, replica: int) -> ReplicaMeta | None:
        """Return one AVAILABLE replica, or None."""
        listed = self.get_task_replicas(model_name, server_type, task)
        return next((meta for meta in listed if meta.replica == replica), None)

    def own_paths(self) -> list[str]:
        """Return the replica nodes of this host, sorted."""
        return sorted(self._own_paths)

    def _replicas(self, server_type: str, model_name: str | None) -> dict[str, list[ReplicaMeta]]:
        result: dict[str, list[ReplicaMeta]] = {}
        for path, meta in self._records(self.paths.services, ReplicaMeta):
            parsed = ServicePath.parse(path)
            if parsed.server_type != server_type or parsed.replica_id is None or meta.stat != ModelState.AVAILABLE:
                continue
            if model_name is None or parsed.base_name == model_name:
                result.setdefault(f"{parsed.base_name}:{parsed.task}", []).append(meta)
        return result

    # --- inside ---

    def _records(self, folder: str, kind: type[R]) -> list[tuple[str, R]]:
        prefix = f"{folder}/"
        records: list[tuple[str, R]] = []
        with self._lock:
            for path in sorted(each for each in self._cache if each.startswith(prefix)):
                record = self._parse(path, kind)
                if isinstance(record, kind):
                    records.append((path, record))
        return records

    def _parse(self, path: str, kind: type[Record]) -> Record | None:
        """Return the record of a cached node, parsed once; None for a folder or an invalid node."""
        if path not in self._parsed:
            content, record = self._cache[path], None
            if content:
                try:
                    record = kind.from_bytes(content)
                    if isinstance(record, PublishMeta) and (defect := publish_defect(record)) is not None:
                        record = None
                        self._bad_nodes.report(path, content, defect)
                except RecordInvalid as error:
                    self._bad_nodes.report(path, content, error)
            self._parsed[path] = record
        return self._parsed[path]

    def _ensure(self, path: str) -> None:
        self._session.ensure(path)

    def _follow_folder(self, path: str, *, depth: int) -> None:
        """Watch a folder; nodes ``depth`` levels below it, and all in between, are cached."""
        with contextlib.suppress(ClusterError):
            self._ensure(path)
        with self._lock:
            if path not in self._folders:
                self._folders[path] = self._watches.watch_children(path, partial(self._note_children, path, depth))

    def _note_children(self, folder: str, depth: int, names: list[str] | None) -> None:
        wanted = {f"{folder}/{name}" for name in names or ()}
        with self._lock:
            if folder not in self._folders:
                return
            present = self._children.get(folder, set())
            self._children[folder] = wanted
            gone = present - wanted
            for path in gone:
                self._drop(path)
            for path in sorted(wanted - present):
                self._nodes[path] = self._watches.watch_data(path, partial(self._note_node, path))
                if depth > 1:
                    self._folders[path] = self._watches.watch_children(
                        path, partial(self._note_children, path, depth - 1)
                    )
        for path in gone:
            self._note_publish_change(path, None)
            self._note_service_change(path)

    def _drop(self, path: str) -> None:
        for child in self._children.pop(path, ()):
            self._drop(child)
        for table in (self._nodes, self._folders):
            handle = table.pop(path, None)
            if handle is not None:
                handle.close()
        self._cache.pop(path, None)
        self._parsed.pop(path, None)

    def _note_node(self, path: str, content: bytes | None, _: NodeStat | None) -> None:
        with self._lock:
            if path not in self._nodes:
                return
            self._parsed.pop(path, None)
            if content is None:
                self._cache.pop(path, None)
            else:
                self._cache[path] = content
        self._note_publish_change(path, content)
        self._note_service_change(path)

    def _note_service_change(self, path: str) -> None:
        if path.startswith(f"{self.paths.services}/"):
            self._on_service()

    def _note_publish_change(self, path: str, content: bytes | None) -> None:
        """Put a PUBLISH event if the publishes of the node's model are complete, or gone."""
        folder, _, name = path.rpartition("/")
        if folder != self.paths.publish:
            return
        model = name.split(":", 2)[-1]
        publishes = [meta for _, meta in self._records(self.paths.publish, PublishMeta) if meta.model_name == model]
        if not publishes or all(each.total_publish_num == len(publishes) for each in publishes):
            self._events.put(Event(path, content or b"", EventType.PUBLISH))

    def _note_portal(self, names: list[str] | None) -> None:
        wanted = set(names or ())
        with self._lock:
            for gone in self._portal.keys() - wanted:
                self._portal.pop(gone).close()
                self._seen_portal.pop(gone, None)
                self._put_portal(gone, ModelMeta(model_name=gone), "DELETED")
            for name in sorted(wanted - self._portal.keys()):
                self._portal[name] = self._watches.watch_data(
                    f"{self.paths.portal}/{name}", partial(self._note_wanted, name)
                )

    def _note_wanted(self, name: str, content: bytes | None, _: NodeStat | None) -> None:
        path = f"{self.paths.portal}/{name}"
        with self._lock:
            if name not in self._portal or content is None:
                return  # the children watch reports the end
            is_first = name not in self._seen_portal
            self._seen_portal[name] = content
        try:
            meta = ModelMeta.from_bytes(content)
        except RecordInvalid as error:
            self._bad_nodes.report(path, content, error)
            return
        self._put_portal(name, meta, "NONE" if is_first else "CHANGED")

    def _put_portal(self, name: str, meta: ModelMeta, action: str) -> None:
        event = dataclasses.replace(meta, model_name=name, action=action)
        self._events.put(Event(f"{self.paths.portal}/{name}", event.to_bytes(), EventType.PORTAL))

    def portal(self) -> Mapping[str, ModelMeta]:
        """Return the wanted models, read from ZooKeeper."""
        try:
            names = self._session.children(self.paths.portal)
        except NodeMissing:
            return {}
        result: dict[str, ModelMeta] = {}
        paths = [f"{self.paths.portal}/{name}" for name in names]
        for name, path, reading in zip(names, paths, self._session.get_all(paths) if paths else [], strict=True):
            if reading is None:
                continue
            try:
                result[name] = dataclasses.replace(ModelMeta.from_bytes(reading[0]), model_name=name)
            except RecordInvalid as error:
                self._bad_nodes.report(path, reading[0], error)
        return result
