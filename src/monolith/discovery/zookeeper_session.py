"""Define one session with ZooKeeper: operations, errors, node state, and session state.

Main types: ``ZooKeeperSession`` (the seam), ``NodeStat``, ``NodeEvent``, ``SessionState``, and the four operations of a
transaction. ``zookeeper_client.ZooKeeperClient`` talks to real servers; ``monolith.testing`` has an in-memory twin.
Both pass one conformance suite.

Invariants: a watch is one-shot and fires at most once. A lost connection drops all watches of the session, without an
event. Ephemeral nodes survive a lost connection and go with the session.

Threading: sessions are thread-safe. A session calls watches and listeners in its own threads; they must return
immediately and must not call the session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from monolith.core.errors import ClusterError

__all__ = [
    "ANY_VERSION",
    "MAX_NODE_BYTES",
    "CheckNode",
    "CreateNode",
    "DeleteNode",
    "Listener",
    "NodeChanged",
    "NodeEvent",
    "NodeEventKind",
    "NodeExists",
    "NodeMissing",
    "NodeNotEmpty",
    "NodeStat",
    "OneShotWatch",
    "Operation",
    "SessionState",
    "SetNode",
    "ZooKeeperSession",
    "check_size",
]

ANY_VERSION = -1
"""Version that matches every node."""

MAX_NODE_BYTES = 1_000_000
"""Largest content of a node. A ZooKeeper server drops the connection of a client that sends more than 1 MiB."""


class NodeMissing(ClusterError):
    """The node does not exist."""


class NodeExists(ClusterError):
    """The node exists already."""


class NodeNotEmpty(ClusterError):
    """The node has children and cannot be deleted."""


class NodeChanged(ClusterError):
    """The node has another version than the caller expects; read it again."""

    _retryable_default = True


class SessionState(Enum):
    """State of the connection and of the session."""

    CONNECTED = "connected"
    """The session can be used. After ``LOST`` it is a new session."""
    SUSPENDED = "suspended"
    """The connection is lost. The session may live on, and its ephemeral nodes with it."""
    LOST = "lost"
    """The session is over; its ephemeral nodes are gone."""


class NodeEventKind(Enum):
    """Kind of change that a watch reports."""

    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILD = "child"


class NodeEvent(NamedTuple):
    """One change of one node."""

    kind: NodeEventKind
    path: str


class NodeStat(NamedTuple):
    """State of a node, with ZooKeeper's field names and order."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    ephemeralOwner: int
    dataLength: int
    numChildren: int
    pzxid: int


@dataclass(frozen=True, slots=True)
class CreateNode:
    """Create a node; its parent must exist."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class SetNode:
    """Set the content of a node of this version."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class DeleteNode:
    """Delete a node of this version."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class CheckNode:
    """Require that a node exists and has this version."""

    path: str
    version: int = ANY_VERSION


Operation: TypeAlias = CreateNode | SetNode | DeleteNode | CheckNode
OneShotWatch: TypeAlias = Callable[[NodeEvent], None]
Listener: TypeAlias = Callable[[SessionState], None]


def check_size(path: str, data: bytes) -> bytes:
    """Return ``data``, or raise ``ClusterError`` if ZooKeeper would refuse its size."""
    if len(data) > MAX_NODE_BYTES:
        raise ClusterError(
            f"content of node {path!r} is {len(data)} bytes, expected at most {MAX_NODE_BYTES}; store less in the node"
        )
    return data


class ZooKeeperSession(Protocol):
    """A session that reconnects by itself, and that a new session follows when the server has ended it.

    Reads fail immediately while the connection is away. Writes wait for the connection up to the timeout of a call.

    Every call may raise ``ConnectionFailed``, ``RpcTimeout``, ``SessionLost`` (all retryable) or ``ClusterError``.
    """

    @property
    def session_id(self) -> int:
        """Id of the session; ``NodeStat.ephemeralOwner`` of its ephemeral nodes."""

    @property
    def is_away(self) -> bool:
        """True while there is no connection."""

    def start(self) -> None:
        """Open the session."""

    def stop(self) -> None:
        """Close the session; its ephemeral nodes go immediately. Never raises."""

    def add_listener(self, listener: Listener) -> None:
        """Call ``listener`` at every change of the session state."""

    def remove_listener(self, listener: Listener) -> None:
        """Stop calling ``listener``."""

    def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False, makepath: bool = True
    ) -> str:
        """Create a node and return its path; ``sequence`` appends ten digits that grow per parent.

        Raises:
            NodeExists: The node exists.
            NodeMissing: The parent does not exist and ``makepath`` is False.
        """

    def replace(self, path: str, data: bytes, version: int) -> None:
        """Replace a node of this version by an ephemeral node of this session, in one transaction.

        Raises:
            ConnectionFailed: Another process changed the node; retryable.
        """

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> None:
        """Set the content of a node.

        Raises:
            NodeMissing: The node does not exist.
            NodeChanged: The node has another version.
        """

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node without children.

        Raises:
            NodeMissing: The node does not exist.
            NodeChanged: The node has another version.
            NodeNotEmpty: The node has children.
        """

    def get(self, path: str, watch: OneShotWatch | None = None) -> tuple[bytes, NodeStat]:
        """Return content and state of a node; raise ``NodeMissing`` without arming the watch."""

    def get_all(self, paths: Sequence[str], watch: OneShotWatch | None = None) -> list[tuple[bytes, NodeStat] | None]:
        """Return content and state of nodes, read together; None for a missing node, whose watch is not armed."""

    def exists(self, path: str, watch: OneShotWatch | None = None) -> NodeStat | None:
        """Return the state of a node, or None. The watch also reports the creation of a missing node."""

    def exists_all(self, paths: Sequence[str], watch: OneShotWatch | None = None) -> list[NodeStat | None]:
        """Return the states of nodes, read together; None for a missing node, whose watch is armed as well."""

    def children(self, path: str, watch: OneShotWatch | None = None) -> list[str]:
        """Return the names of the children of a node; raise ``NodeMissing`` without arming the watch."""

    def children_all(self, paths: Sequence[str], watch: OneShotWatch | None = None) -> list[list[str] | None]:
        """Return the names of the children of nodes, read together; None for a missing node."""

    def ensure(self, path: str) -> None:
        """Create a persistent node and its parents where they are missing."""

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        """Apply all operations or none; return the path of each operation, with the digits of a sequence node.

        Raises:
            NodeMissing: A node, or a parent of a created one, does not exist.
            NodeExists: A created node exists.
            NodeChanged: A node has another version.
            NodeNotEmpty: A deleted node has children.
        """
