"""``FleetWatch``: the parameter servers of a served model, as its agents register them in ZooKeeper.

The node of a replica is ``/<bzid>/service/<model>/[<idc>:<cluster>/]ps:<shard>/<replica>``; its content is JSON with
``address`` and ``stat``. The watch follows tasks and replicas that come and go. An invalid node is logged and ignored.

Threading: watches call from the one thread of ``NodeWatches``; any thread may read the servers.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Mapping
from functools import partial

from monolith.core.errors import ConfigError
from monolith.discovery.zookeeper_session import NodeStat, ZooKeeperSession
from monolith.discovery.zookeeper_watches import NodeWatches, WatchHandle

__all__ = ["FleetWatch"]

logger = logging.getLogger(__name__)

_AVAILABLE = 30
_NAME = re.compile(r"[^/\s]+")
_TASK = re.compile(r"(\w+):(\d+)")


class FleetWatch:
    """Follows the available ``ps`` replicas of one model.

    Args:
        session: A session; the caller starts and stops it.
        bzid: Namespace of the fleet.
        model: Base name of the model.
        on_change: Called in the thread of the watches after servers changed.

    Raises:
        ConfigError: ``bzid`` or ``model`` cannot be part of a path.
    """

    def __init__(
        self, session: ZooKeeperSession, bzid: str, model: str, *, on_change: Callable[[], None] = lambda: None
    ) -> None:
        for field, name in (("bzid", bzid), ("model", model)):
            if not _NAME.fullmatch(name):
                raise ConfigError(f"{field} is {name!r}, expected a name without slashes and spaces")
        self._on_change = on_change
        self._lock = threading.Lock()
        self._handles: dict[str, dict[str, WatchHandle]] = {}
        self._tasks: dict[str, int] = {}
        self._addresses: dict[str, tuple[int, str]] = {}
        self._watches = NodeWatches(session, name="fleet-watches")
        root = f"/{bzid}/service/{model}"
        self._watches.watch_children(root, partial(self._note_tasks, root))

    def servers(self) -> Mapping[int, tuple[str, ...]]:
        """Return shard to the sorted addresses of its available replicas; a known shard may have none."""
        with self._lock:
            found: dict[int, set[str]] = {shard: set() for shard in self._tasks.values()}
            for shard, address in self._addresses.values():
                found.setdefault(shard, set()).add(address)
            return {shard: tuple(sorted(found[shard])) for shard in sorted(found)}

    def close(self) -> None:
        """End the watches; a second call does nothing."""
        self._watches.close()

    def _note_tasks(self, folder: str, names: list[str] | None) -> None:
        """Follow the tasks below a model or a location; a location is a folder of tasks."""

        def follow(name: str) -> WatchHandle | None:
            path, task = f"{folder}/{name}", _TASK.fullmatch(name)
            if task is None:
                return self._watches.watch_children(path, partial(self._note_tasks, path)) if ":" in name else None
            if task[1] != "ps":
                return None
            with self._lock:
                self._tasks[path] = int(task[2])
            return self._watches.watch_children(path, partial(self._note_replicas, path, int(task[2])))

        self._update(folder, names, follow)

    def _note_replicas(self, folder: str, shard: int, names: list[str] | None) -> None:
        def follow(name: str) -> WatchHandle:
            return self._watches.watch_data(f"{folder}/{name}", partial(self._note_replica, f"{folder}/{name}", shard))

        self._update(folder, names, follow)

    def _note_replica(self, path: str, shard: int, content: bytes | None, stat: NodeStat | None) -> None:
        address = None if content is None else _available_address(path, content)
        with self._lock:
            before = self._addresses.pop(path, None)
            if address is not None:
                self._addresses[path] = shard, address
            is_changed = self._addresses.get(path) != before
        if is_changed:
            self._on_change()

    def _update(self, folder: str, names: list[str] | None, follow: Callable[[str], WatchHandle | None]) -> None:
        """Follow the new children of a folder, and forget those that are gone with everything below them."""
        wanted = set(names or ())
        handles = self._handles.setdefault(folder, {})
        for name in [name for name in handles if name not in wanted]:
            self._forget(folder, name)
        for name in sorted(wanted - handles.keys()):
            handle = follow(name)
            if handle is not None:
                handles[name] = handle
        self._on_change()

    def _forget(self, folder: str, name: str) -> None:
        path = f"{folder}/{name}"
        self._handles[folder].pop(name).close()
        for child in list(self._handles.get(path, {})):
            self._forget(path, child)
        self._handles.pop(path, None)
        with self._lock:
            self._tasks.pop(path, None)
            self._addresses.pop(path, None)


def _available_address(path: str, content: bytes) -> str | None:
    try:
        body = json.loads(content)
        if body.get("stat") != _AVAILABLE:
            return None
        address = body.get("address") or body.get("address_ipv6")
    except (ValueError, AttributeError) as error:
        logger.warning("replica node ignored path=%s reason=%s", path, error)
        return None
    return address if isinstance(address, str) and ":" in address else None
