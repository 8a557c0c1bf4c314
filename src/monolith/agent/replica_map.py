"""Follow which replicas serve the tasks of a version 1 model.

Main type: ``ReplicaMap``. It watches the nodes below ``/<bzid>/service/<base_name>``: locations where agents are aware
of them, tasks, replicas.

Invariants: only AVAILABLE replicas are handed out. A node that comes back is seen again. An odd node is logged once
and ignored. A change costs the work of one replica.

Threading: watches call from the one thread of ``NodeWatches``; lookups may be called from any thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from monolith.agent.node_paths import NodePaths, ServicePath, parse_task
from monolith.agent.records import AddressFamily, BadNodes, ModelState, RecordInvalid, ReplicaMeta
from monolith.core.errors import ClusterError
from monolith.discovery.zookeeper_session import NodeStat, ZooKeeperSession
from monolith.discovery.zookeeper_watches import NodeWatches, WatchHandle

__all__ = ["ReplicaMap", "ReplicaTask"]


@dataclass(frozen=True, slots=True)
class ReplicaTask:
    """A task of one location; location None = agents are not aware of locations."""

    location: str | None
    server_type: str
    index: int

    @property
    def key(self) -> str:
        """``<type>:<index>``, after the location where there is one."""
        task = f"{self.server_type}:{self.index}"
        return task if self.location is None else f"{self.location}/{task}"


class ReplicaMap:
    """The replicas of one model.

    Args:
        session: A session; the caller starts and stops it.
        paths: Node paths of the bzid.
        base_name: The model.
        dc_aware: Whether tasks stand below locations.
        address_family: Which address of a replica is preferred.
        on_change: Called in the thread of the watches after a replica changed.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        paths: NodePaths,
        base_name: str,
        *,
        dc_aware: bool = False,
        address_family: AddressFamily = AddressFamily.IPV4,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._session = session
        self._base = paths.service(base_name)
        self._dc_aware = dc_aware
        self._family = address_family
        self._on_change = on_change
        self._bad_nodes = BadNodes()
        self._lock = threading.RLock()
        self._watches = NodeWatches(session, name="agent-replicas")
        self._base_watch: WatchHandle | None = None
        self._locations: dict[str, WatchHandle] = {}
        self._tasks: dict[ReplicaTask, WatchHandle] = {}
        self._nodes: dict[ReplicaTask, dict[str, WatchHandle]] = {}
        self._replicas: dict[ReplicaTask, dict[int, ReplicaMeta]] = {}

    def start(self) -> None:
        """Watch the nodes; the base path is made if it does not exist."""
        with contextlib.suppress(ClusterError):  # the watch sees the node when another agent makes it
            self._session.ensure(self._base)
        callback = self._note_locations if self._dc_aware else partial(self._note_tasks, None)
        self._base_watch = self._watches.watch_children(self._base, callback)

    def reread(self) -> None:
        """Read all nodes again; a safety net against a lost event."""
        self._watches.reread()

    def close(self) -> None:
        """End all watches."""
        self._watches.close()

    # --- lookups ---

    def get_all_replicas(
        self, server_type: str, idc: str | None = None, cluster: str | None = None
    ) -> dict[str, list[str]]:
        """Return the addresses of AVAILABLE replicas by task key; a known task without any has an empty list."""
        with self._lock:
            return {
                task.key: self._addresses(self._replicas[task].values())
                for task in sorted(self._replicas, key=str)
                if task.server_type == server_type and _is_in(task, idc, cluster)
            }

    def get_replicas(
        self, server_type: str, task: int, idc: str | None = None, cluster: str | None = None
    ) -> list[str]:
        """Return the addresses of AVAILABLE replicas of one task."""
        with self._lock:
            metas = [
                meta
                for each in self._matching(server_type, task, idc, cluster)
                for meta in self._replicas[each].values()
            ]
        return self._addresses(metas)

    def get_replica(
        self, server_type: str, task: int, replica: int, idc: str | None = None, cluster: str | None = None
    ) -> list[str]:
        """Return the addresses of one replica; several if several locations have it."""
        with self._lock:
            metas = [
                self._replicas[each][replica]
                for each in self._matching(server_type, task, idc, cluster)
                if replica in self._replicas[each]
            ]
        return self._addresses(metas)

    def get_replicas_with_extra_info(
        self, server_type: str, task: int, idc: str | None = None, cluster: str | None = None
    ) -> dict[str, dict[str, Any]]:
        """Return location and replica id of each AVAILABLE replica of a task, by address."""
        result: dict[str, dict[str, Any]] = {}
        with self._lock:
            for each in self._matching(server_type, task, idc, cluster):
                own_idc, _, own_cluster = (each.location or "").partition(":")
                for number, meta in self._replicas[each].items():
                    for address in self._addresses([meta]):
                        result[address] = {
                            "idc": own_idc or None,
                            "cluster": own_cluster or None,
                            "replica_id": number,
                        }
        return result

    def has_all(self, server_type: str, count: int, idc: str | None = None, cluster: str | None = None) -> bool:
        """Return True if each task from 0 to ``count`` - 1 has an AVAILABLE replica."""
        return all(self.get_replicas(server_type, index, idc, cluster) for index in range(count))

    def _matching(self, server_type: str, task: int, idc: str | None, cluster: str | None) -> Iterator[ReplicaTask]:
        for each in self._replicas:
            if each.server_type == server_type and each.index == task and _is_in(each, idc, cluster):
                yield each

    def _addresses(self, metas: Any) -> list[str]:
        return sorted(
            {
                address
                for meta in metas
                if meta.stat == ModelState.AVAILABLE
                and (address := meta.get_address(address_family=self._family)) is not None
            }
        )

    # --- watches ---

    def _note_locations(self, names: list[str] | None) -> None:
        locations = set()
        for name in names or ():
            if parse_task(name) is None and ServicePath.parse(f"{self._base}/{name}/ps:0").location == name:
                locations.add(name)
            else:
                self._bad_nodes.report(f"{self._base}/{name}", None, "name is not <idc>:<cluster>")
        with self._lock:
            for gone in self._locations.keys() - locations:
                self._locations.pop(gone).close()
                self._drop_tasks(gone, set())
            for name in sorted(locations - self._locations.keys()):
                self._locations[name] = self._watches.watch_children(
                    f"{self._base}/{name}", partial(self._note_tasks, name)
                )

    def _note_tasks(self, location: str | None, names: list[str] | None) -> None:
        tasks: set[ReplicaTask] = set()
        for name in names or ():
            parsed = parse_task(name)
            if parsed is None:
                self._bad_nodes.report(f"{self._folder(location)}/{name}", None, "name is not <type>:<index>")
            elif name == f"{parsed[0]}:{parsed[1]}":
                tasks.add(ReplicaTask(location, *parsed))
        with self._lock:
            if location is not None and location not in self._locations:
                return
            self._drop_tasks(location, tasks)
            for task in sorted(tasks - self._tasks.keys(), key=str):
                self._nodes[task] = {}
                self._tasks[task] = self._watches.watch_children(self._path(task), partial(self._note_nodes, task))

    def _drop_tasks(self, location: str | None, kept: set[ReplicaTask]) -> None:
        gone = [task for task in self._tasks if task.location == location and task not in kept]
        for task in gone:
            self._tasks.pop(task).close()
            for handle in self._nodes.pop(task).values():
                handle.close()
            self._replicas.pop(task, None)
        if gone:
            self._on_change()

    def _note_nodes(self, task: ReplicaTask, names: list[str] | None) -> None:
        numbers = {name for name in names or () if name.isascii() and name.isdigit() and len(name) <= 18}
        for name in set(names or ()) - numbers:
            self._bad_nodes.report(f"{self._path(task)}/{name}", None, "name is not a replica number")
        with self._lock:
            nodes = self._nodes.get(task)
            if nodes is None:
                return
            gone = nodes.keys() - numbers
            for name in gone:
                nodes.pop(name).close()
                self._remove(task, int(name))
            for name in sorted(numbers - nodes.keys()):
                nodes[name] = self._watches.watch_data(
                    f"{self._path(task)}/{name}", partial(self._note_replica, task, name)
                )
        if gone:
            self._on_change()

    def _note_replica(self, task: ReplicaTask, name: str, content: bytes | None, _: NodeStat | None) -> None:
        path = f"{self._path(task)}/{name}"
        meta: ReplicaMeta | None = None
        if content:
            try:
                meta = ReplicaMeta.from_bytes(content)
            except RecordInvalid as error:
                self._bad_nodes.report(path, content, error)
            else:
                self._bad_nodes.forget(path)
        with self._lock:
            if name not in self._nodes.get(task, {}):
                return
            if meta is None:
                self._remove(task, int(name))
            else:
                self._replicas.setdefault(task, {})[int(name)] = meta
        self._on_change()

    def _remove(self, task: ReplicaTask, number: int) -> None:
        replicas = self._replicas.get(task, {})
        replicas.pop(number, None)
        if not replicas:
            self._replicas.pop(task, None)

    def _folder(self, location: str | None) -> str:
        return self._base if location is None else f"{self._base}/{location}"

    def _path(self, task: ReplicaTask) -> str:
        return f"{self._folder(task.location)}/{task.server_type}:{task.index}"


def _is_in(task: ReplicaTask, idc: str | None, cluster: str | None) -> bool:
    return idc is None or cluster is None or task.location == f"{idc}:{cluster}"
