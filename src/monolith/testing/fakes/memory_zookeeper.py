"""Keep a ZooKeeper tree in memory: the twin of a real server, for tests without Java.

Main types: ``MemoryZooKeeper`` (the server) and ``MemoryZooKeeperClient`` (a ``ZooKeeperSession``). The conformance
suite ``suites/zookeeper_suite.py`` runs against the twin and against a real server.

Invariants: sequence numbers count the children that a parent ever got. Watches are one-shot, and a lost connection
drops them. Ephemeral nodes go with their session.

Threading: one lock per server. Each client calls its watches and listeners in its own thread, in order.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import secrets
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ClusterError, ConnectionFailed, RpcTimeout
from monolith.discovery.zookeeper_session import (
    ANY_VERSION,
    CheckNode,
    CreateNode,
    DeleteNode,
    Listener,
    NodeChanged,
    NodeEvent,
    NodeEventKind,
    NodeExists,
    NodeMissing,
    NodeNotEmpty,
    NodeStat,
    OneShotWatch,
    Operation,
    SessionState,
    SetNode,
    check_size,
)

__all__ = ["MemoryZooKeeper", "MemoryZooKeeperClient"]

logger = logging.getLogger(__name__)


_WatchTable: TypeAlias = defaultdict[str, set[OneShotWatch]]


@dataclass(slots=True)
class _Node:
    data: bytes
    czxid: int
    mzxid: int
    pzxid: int
    ctime: int
    mtime: int
    owner: int = 0
    version: int = 0
    created_children: int = 0
    children: set[str] = field(default_factory=set)

    def copy(self) -> _Node:
        return dataclasses.replace(self, children=set(self.children))

    def stat(self) -> NodeStat:
        return NodeStat(
            czxid=self.czxid,
            mzxid=self.mzxid,
            ctime=self.ctime,
            mtime=self.mtime,
            version=self.version,
            cversion=2 * self.created_children - len(self.children),
            aversion=0,
            ephemeralOwner=self.owner,
            dataLength=len(self.data),
            numChildren=len(self.children),
            pzxid=self.pzxid,
        )


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


class MemoryZooKeeper:
    """A server whose tree lives as long as this object.

    Args:
        clock: Gives creation and change times of nodes.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self.lock = threading.Condition(threading.RLock())
        self._zxid = 0
        self._events: list[NodeEvent] | None = None
        self._nodes: dict[str, _Node] = {"/": self._new_node(b"", 0)}
        self._clients: list[MemoryZooKeeperClient] = []

    def client(self, *, timeout_s: float = 10.0) -> MemoryZooKeeperClient:
        """Return a client that is not started yet."""
        return MemoryZooKeeperClient(self, timeout_s=timeout_s)

    def disconnect(self, client: MemoryZooKeeperClient) -> None:
        """Cut the connection of a client; its session and its ephemeral nodes stay."""
        with self.lock:
            client.cut()

    def reconnect(self, client: MemoryZooKeeperClient) -> None:
        """Let a client connect again, with its session if that is not over."""
        with self.lock:
            client.restore()

    def expire(self, client: MemoryZooKeeperClient) -> None:
        """End the session of a client; its ephemeral nodes go, and a connected client opens a new session."""
        with self.lock:
            was_connected = not client.is_away
            self.drop_session(client.session_id)
            client.lose()
            if was_connected:
                client.restore()

    # --- for clients, which hold the lock ---

    def attach(self, client: MemoryZooKeeperClient) -> None:
        """Add a client whose watches fire at changes."""
        self._clients.append(client)

    def detach(self, client: MemoryZooKeeperClient) -> None:
        """Remove a client."""
        self._clients = [each for each in self._clients if each is not client]

    def drop_session(self, session_id: int) -> None:
        """Delete the ephemeral nodes of a session."""
        for path in [path for path, node in self._nodes.items() if node.owner == session_id]:
            self.delete(path, ANY_VERSION)

    def node(self, path: str) -> _Node:
        """Return a node, or raise ``NodeMissing``."""
        node = self._nodes.get(_checked(path))
        if node is None:
            raise NodeMissing(path)
        return node

    def has(self, path: str) -> bool:
        """Return True if the node exists."""
        return _checked(path) in self._nodes

    def create(self, operation: CreateNode, session_id: int) -> str:
        """Create a node and return its path."""
        path = operation.path if operation.sequence else _checked(operation.path)
        check_size(path, operation.data)
        above = self.node(_parent(path))
        if above.owner:
            raise ClusterError(f"node {_parent(path)!r} is ephemeral, expected a persistent parent of {path!r}")
        if operation.sequence:
            path = f"{path}{above.created_children:010d}"
        if path in self._nodes:
            raise NodeExists(path)
        node = self._new_node(operation.data, session_id if operation.ephemeral else 0)
        self._nodes[path] = node
        above.children.add(path.rpartition("/")[2])
        above.created_children += 1
        above.pzxid = node.czxid
        self._notify(NodeEvent(NodeEventKind.CREATED, path))
        self._notify(NodeEvent(NodeEventKind.CHILD, _parent(path)))
        return path

    def ensure(self, path: str) -> None:
        """Create persistent nodes down to ``path``."""
        if not self.has(path):
            self.ensure(_parent(path))
            self.create(CreateNode(path), 0)

    def set(self, path: str, data: bytes, version: int) -> None:
        """Set the content of a node."""
        node = self.checked_version(path, version)
        node.data = check_size(path, data)
        node.version += 1
        self._zxid += 1
        node.mzxid, node.mtime = self._zxid, int(self._clock.now_s() * 1000)
        self._notify(NodeEvent(NodeEventKind.CHANGED, path))

    def delete(self, path: str, version: int) -> None:
        """Delete a node."""
        node = self.checked_version(path, version)
        if node.children:
            raise NodeNotEmpty(path)
        del self._nodes[path]
        above = self._nodes[_parent(path)]
        above.children.discard(path.rpartition("/")[2])
        self._zxid += 1
        above.pzxid = self._zxid
        self._notify(NodeEvent(NodeEventKind.DELETED, path))
        self._notify(NodeEvent(NodeEventKind.CHILD, _parent(path)))

    def checked_version(self, path: str, version: int) -> _Node:
        """Return a node of this version, or raise."""
        node = self.node(path)
        if version not in (ANY_VERSION, node.version):
            raise NodeChanged(path)
        return node

    def commit(self, operations: Sequence[Operation], session_id: int) -> list[str]:
        """Apply all operations or none."""
        touched = {path for each in operations for path in (each.path, _parent(each.path))}
        before = {path: self._nodes[path].copy() if path in self._nodes else None for path in touched}
        zxid, created = self._zxid, []
        self._events = []
        try:
            for each in operations:
                created.append(self._apply(each, session_id))
        except BaseException:
            for path in created:
                self._nodes.pop(path, None)
            for path, node in before.items():
                self._nodes.pop(path, None)
                if node is not None:
                    self._nodes[path] = node
            self._zxid = zxid
            raise
        finally:
            events, self._events = self._events, None
        for event in events:
            self._notify(event)
        return created

    def _apply(self, operation: Operation, session_id: int) -> str:
        match operation:
            case CreateNode():
                return self.create(operation, session_id)
            case SetNode(path, data, version):
                self.set(path, data, version)
            case DeleteNode(path, version):
                self.delete(path, version)
            case CheckNode(path, version):
                self.checked_version(path, version)
        return operation.path

    def _new_node(self, data: bytes, owner: int) -> _Node:
        self._zxid += 1
        now_ms = int(self._clock.now_s() * 1000)
        zxid = self._zxid
        return _Node(data=data, czxid=zxid, mzxid=zxid, pzxid=zxid, ctime=now_ms, mtime=now_ms, owner=owner)

    def _notify(self, event: NodeEvent) -> None:
        if self._events is not None:
            self._events.append(event)  # a transaction is under way
            return
        for client in self._clients:
            client.note(event)


def _checked(path: str) -> str:
    if not path.startswith("/") or (path != "/" and path.endswith("/")) or "//" in path:
        raise ClusterError(f"path is {path!r}, expected /a/b; give an absolute path without an empty element")
    return path


class MemoryZooKeeperClient:
    """A session with a ``MemoryZooKeeper``.

    Args:
        server: The server.
        timeout_s: How long a write waits for the connection.
    """

    def __init__(self, server: MemoryZooKeeper, *, timeout_s: float) -> None:
        self._server = server
        self._timeout_s = timeout_s
        self._session_id = 0
        self._is_connected = False
        self._is_lost = False
        self._listeners: list[Listener] = []
        self._data_watches: _WatchTable = defaultdict(set)
        self._child_watches: _WatchTable = defaultdict(set)
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="memory-zookeeper", daemon=True)

    @property
    def session_id(self) -> int:
        """Id of the session, which its ephemeral nodes name as their owner."""
        return self._session_id

    @property
    def is_away(self) -> bool:
        """True while there is no connection."""
        return not self._is_connected

    def start(self) -> None:
        """Open the session."""
        self._thread.start()
        with self._server.lock:
            self._server.attach(self)
            self._is_lost = True
            self.restore()

    def stop(self) -> None:
        """Close the session; its ephemeral nodes go immediately. Never raises."""
        with self._server.lock:
            self._server.detach(self)
            self._is_connected = False
            self._server.drop_session(self._session_id)
            self._listeners = []
        self._calls.put(None)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(30.0)

    def add_listener(self, listener: Listener) -> None:
        """Call ``listener`` at every change of the session state."""
        with self._server.lock:
            self._listeners = [*self._listeners, listener]

    def remove_listener(self, listener: Listener) -> None:
        """Stop calling ``listener``."""
        with self._server.lock:
            self._listeners = [each for each in self._listeners if each != listener]

    def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False, makepath: bool = True
    ) -> str:
        """Create a node and return its path; ``sequence`` appends ten digits that grow per parent."""
        with self._server.lock:
            self._await_connection("create", path)
            if makepath:
                self._server.ensure(_parent(path))
            return self._server.create(CreateNode(path, data, ephemeral, sequence), self._session_id)

    def replace(self, path: str, data: bytes, version: int) -> None:
        """Replace a node of this version by an ephemeral node of this session, in one transaction."""
        try:
            self.commit([DeleteNode(path, version), CreateNode(path, data, ephemeral=True)])
        except (NodeMissing, NodeExists, NodeChanged, NodeNotEmpty) as error:
            raise ConnectionFailed(f"ZooKeeper replace of {path} failed: another process changed it") from error

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> None:
        """Set the content of a node of this version."""
        with self._server.lock:
            self._await_connection("set", path)
            self._server.set(path, data, version)

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node of this version that has no children."""
        with self._server.lock:
            self._await_connection("delete", path)
            self._server.delete(path, version)

    def get(self, path: str, watch: OneShotWatch | None = None) -> tuple[bytes, NodeStat]:
        """Return content and state of a node."""
        with self._server.lock:
            self._refuse_if_away("get", path)
            node = self._server.node(path)
            self._arm(self._data_watches, path, watch)
            return node.data, node.stat()

    def get_all(self, paths: Sequence[str], watch: OneShotWatch | None = None) -> list[tuple[bytes, NodeStat] | None]:
        """Return content and state of nodes; None for a missing node."""
        return [_none_if_missing(self.get, path, watch) for path in paths]

    def exists(self, path: str, watch: OneShotWatch | None = None) -> NodeStat | None:
        """Return the state of a node, or None."""
        with self._server.lock:
            self._refuse_if_away("exists", path)
            self._arm(self._data_watches, path, watch)
            return self._server.node(path).stat() if self._server.has(path) else None

    def exists_all(self, paths: Sequence[str], watch: OneShotWatch | None = None) -> list[NodeStat | None]:
        """Return the states of nodes; None for a missing node."""
        return [self.exists(path, watch) for path in paths]

    def children(self, path: str, watch: OneShotWatch | None = None) -> list[str]:
        """Return the names of the children of a node."""
        with self._server.lock:
            self._refuse_if_away("get_children", path)
            node = self._server.node(path)
            self._arm(self._child_watches, path, watch)
            return list(node.children)

    def children_all(self, paths: Sequence[str], watch: OneShotWatch | None = None) -> list[list[str] | None]:
        """Return the names of the children of nodes; None for a missing node."""
        return [_none_if_missing(self.children, path, watch) for path in paths]

    def ensure(self, path: str) -> None:
        """Create a persistent node and its parents where they are missing."""
        with self._server.lock:
            self._await_connection("ensure_path", path)
            self._server.ensure(path)

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        """Apply all operations or none; return the path of each operation."""
        with self._server.lock:
            self._await_connection("transaction", ", ".join(each.path for each in operations))
            return self._server.commit(operations, self._session_id)

    # --- for the server, which holds the lock ---

    def note(self, event: NodeEvent) -> None:
        """Fire the watches of an event."""
        path = event.path
        watches: set[OneShotWatch] = set()
        if event.kind is not NodeEventKind.CHILD:
            watches |= self._data_watches.pop(path, set())
        if event.kind in (NodeEventKind.CHILD, NodeEventKind.DELETED):
            watches |= self._child_watches.pop(path, set())
        for watch in watches:
            self._calls.put(partial(watch, event))

    def cut(self) -> None:
        """Lose the connection."""
        if self._is_connected:
            self._is_connected = False
            self._data_watches.clear()
            self._child_watches.clear()
            self._tell(SessionState.SUSPENDED)

    def lose(self) -> None:
        """Lose the session."""
        self.cut()
        self._is_lost = True
        self._tell(SessionState.LOST)

    def restore(self) -> None:
        """Connect, with a new session where the last one is over."""
        if self._is_connected:
            return
        if self._is_lost:
            self._session_id = secrets.randbits(62) | 1
            self._is_lost = False
        self._is_connected = True
        self._tell(SessionState.CONNECTED)
        self._server.lock.notify_all()

    def _tell(self, state: SessionState) -> None:
        for listener in self._listeners:
            self._calls.put(partial(listener, state))

    def _arm(self, watches: _WatchTable, path: str, watch: OneShotWatch | None) -> None:
        if watch is not None:
            watches[path].add(watch)

    def _refuse_if_away(self, operation: str, path: str) -> None:
        if self.is_away:
            raise ConnectionFailed(f"Connection failed: ZooKeeper {operation} of {path}: memory is away")

    def _await_connection(self, operation: str, path: str) -> None:
        if not self._server.lock.wait_for(lambda: self._is_connected, self._timeout_s):
            raise RpcTimeout(f"Operation timed out: ZooKeeper {operation} of {path} after {self._timeout_s:g} s")

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception:
                logger.exception("watch or listener failed")


def _none_if_missing(read: Callable[[str, OneShotWatch | None], Any], path: str, watch: OneShotWatch | None) -> Any:
    try:
        return read(path, watch)
    except NodeMissing:
        return None
