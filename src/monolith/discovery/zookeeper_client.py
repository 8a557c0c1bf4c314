"""Connect to ZooKeeper: the only module that imports kazoo, and only when a client is made.

Main type: ``ZooKeeperClient``, a ``ZooKeeperSession`` over kazoo.

Invariants: every call has a deadline. Every failure is an error of ``monolith.core.errors`` or of
``zookeeper_session``. A session that has surely expired is given up after two session timeouts. A server that accepts
a connection and does not answer is left long before the session times out.

Threading: thread-safe. Listeners and watches run in kazoo's threads.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from monolith.core.clock import Clock
from monolith.core.errors import ClusterError, ConfigError, ConnectionFailed, RpcTimeout, SessionLost
from monolith.discovery._periodic import Periodic
from monolith.discovery.address import checked_host, split_address
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

__all__ = ["NodeExists", "NodeMissing", "ZooKeeperClient", "checked_servers"]

logger = logging.getLogger(__name__)

_DEFAULT_PORT = 2181
_FIRST_ANSWER_S = 1.0


def checked_servers(servers: str) -> str:
    """Return ``host:port,...``, a host alone having port 2181, or raise ``ConfigError``."""
    texts = [text.strip() for text in servers.split(",")]
    if not any(texts):
        raise ConfigError(f"ZooKeeper connect invalid hosts: {servers!r} names none; give host:port,host:port")
    checked = []
    for text in texts:
        try:
            has_port = ":" in text.rpartition("]")[2]
            host, port = split_address(text) if has_port else (checked_host(text), _DEFAULT_PORT)
        except ConfigError as error:
            raise ConfigError(f"ZooKeeper connect invalid hosts: {error}") from error
        checked.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    return ",".join(checked)


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"ZooKeeper needs kazoo ({error}); install it with: pip install 'monolith[zookeeper]'"
        ) from error


class ZooKeeperClient:
    """A ``ZooKeeperSession`` with real servers.

    Args:
        servers: ``host:port,...``.
        auth: ``user:password`` of a digest, or None.
        session_timeout_s: Time after which the server ends the session of a silent client.
        timeout_s: Deadline of one call.
        on_connected: Called in a thread of the client at each connection, with True if the session is new since the
            last connection. It must return immediately. ``add_listener`` also reports suspension and loss.
        clock: Measures outages.
    """

    def __init__(
        self,
        servers: str,
        *,
        auth: str | None,
        session_timeout_s: float,
        timeout_s: float,
        on_connected: Callable[[bool], None] = lambda _: None,
        clock: Clock,
    ) -> None:
        self._servers = servers
        self._timeout_s = timeout_s
        self._session_timeout_s = session_timeout_s
        self._clock = clock
        self._away_since_s: float | None = None
        self._outages = Periodic(
            "zookeeper-outages", self._end_long_outage, interval_s=session_timeout_s / 2, retry_s=session_timeout_s / 2
        )
        self._on_connected = on_connected
        self._was_lost = False
        self._is_stopped = False
        self._stopping = threading.Lock()
        self._credentials = -1, b""
        self._listeners: list[Listener] = []
        module = _load("kazoo.client")
        self._errors = _load("kazoo.exceptions")
        self._states = {
            module.KazooState.CONNECTED: SessionState.CONNECTED,
            module.KazooState.SUSPENDED: SessionState.SUSPENDED,
            module.KazooState.LOST: SessionState.LOST,
        }
        handler = _load("kazoo.handlers.threading").SequentialThreadingHandler()
        first_answer = _FirstAnswer(handler, clock)
        handler.create_connection, handler.select = first_answer.connect, first_answer.select
        self._kazoo = module.KazooClient(
            hosts=servers,
            handler=handler,
            timeout=session_timeout_s,
            auth_data=[("digest", auth)] if auth else None,
            connection_retry={"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 5.0},
        )
        self._kazoo.add_listener(self._note_state)

    @property
    def session_id(self) -> int:
        """Id of the session, which its ephemeral nodes name as their owner; -1 before the first connection."""
        return self.credentials[0]

    @property
    def credentials(self) -> tuple[int, bytes]:
        """Id and password of the session; a client that has them can take over the session."""
        return self._credentials  # not kazoo's, which are None without a connection although the session lives

    @property
    def is_away(self) -> bool:
        """True while there is no connection."""
        return not self._kazoo.connected

    def start(self) -> None:
        """Open the session."""
        try:
            self._kazoo.start(timeout=self._timeout_s)
        except self._kazoo.handler.timeout_exception as error:
            raise ConnectionFailed(
                f"Connection failed: no ZooKeeper at {self._servers} within {self._timeout_s:g} s; check the address"
            ) from error
        except (self._errors.KazooException, OSError) as error:
            raise ConnectionFailed(f"Connection failed: ZooKeeper at {self._servers}: {error!r}") from error
        self._note_credentials()  # kazoo may return before it calls the listener
        self._outages.start()

    def stop(self) -> None:
        """Close the session; its ephemeral nodes go immediately. Never raises."""
        with self._stopping:
            self._is_stopped = True
        self._outages.stop()
        self._kazoo.remove_listener(self._note_state)
        try:
            self._kazoo.stop()
            self._kazoo.close()
        except Exception as error:
            logger.warning("ZooKeeper session not closed cleanly servers=%s error=%r", self._servers, error)

    def add_listener(self, listener: Listener) -> None:
        """Call ``listener`` at every change of the session state."""
        self._listeners = [*self._listeners, listener]

    def remove_listener(self, listener: Listener) -> None:
        """Stop calling ``listener``."""
        self._listeners = [each for each in self._listeners if each != listener]

    def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False, makepath: bool = True
    ) -> str:
        """Create a node and return its path; ``sequence`` appends ten digits that grow per parent."""
        check_size(path, data)
        return str(self._call("create", path, data, ephemeral=ephemeral, sequence=sequence, makepath=makepath))

    def replace(self, path: str, data: bytes, version: int) -> None:
        """Replace a node of this version by an ephemeral node of this session, in one transaction."""
        try:
            self.commit([DeleteNode(path, version), CreateNode(path, data, ephemeral=True)])
        except (NodeMissing, NodeExists, NodeChanged, NodeNotEmpty) as error:
            raise ConnectionFailed(
                f"ZooKeeper replace of {path} failed: another process changed it meanwhile"
            ) from error

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> None:
        """Set the content of a node of this version."""
        self._call("set", path, check_size(path, data), version=version)

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node of this version that has no children."""
        self._call("delete", path, version=version)

    def get(self, path: str, watch: OneShotWatch | None = None) -> tuple[bytes, NodeStat]:
        """Return content and state of a node."""
        reading = self.get_all([path], watch)[0]
        if reading is None:
            raise NodeMissing(path)
        return reading

    def get_all(self, paths: Sequence[str], watch: OneShotWatch | None = None) -> list[tuple[bytes, NodeStat] | None]:
        """Return content and state of nodes, read together; None for a missing node."""
        readings = self._read_all("get", paths, watch)
        return [None if reading is None else (bytes(reading[0]), NodeStat(*reading[1])) for reading in readings]

    def exists(self, path: str, watch: OneShotWatch | None = None) -> NodeStat | None:
        """Return the state of a node, or None."""
        return self.exists_all([path], watch)[0]

    def exists_all(self, paths: Sequence[str], watch: OneShotWatch | None = None) -> list[NodeStat | None]:
        """Return the states of nodes, read together; None for a missing node."""
        readings = self._read_all("exists", paths, watch)
        return [None if reading is None else NodeStat(*reading) for reading in readings]

    def children(self, path: str, watch: OneShotWatch | None = None) -> list[str]:
        """Return the names of the children of a node."""
        names = self.children_all([path], watch)[0]
        if names is None:
            raise NodeMissing(path)
        return names

    def children_all(self, paths: Sequence[str], watch: OneShotWatch | None = None) -> list[list[str] | None]:
        """Return the names of the children of nodes, read together; None for a missing node."""
        readings = self._read_all("get_children", paths, watch)
        return [None if reading is None else list(reading) for reading in readings]

    def ensure(self, path: str) -> None:
        """Create a persistent node and its parents where they are missing."""
        self._call("ensure_path", path)

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        """Apply all operations or none; return the path of each operation."""
        transaction = self._kazoo.transaction()
        for each in operations:
            match each:
                case CreateNode(path, data, ephemeral, sequence):
                    transaction.create(path, check_size(path, data), ephemeral=ephemeral, sequence=sequence)
                case SetNode(path, data, version):
                    transaction.set_data(path, check_size(path, data), version=version)
                case DeleteNode(path, version):
                    transaction.delete(path, version=version)
                case CheckNode(path, version):
                    transaction.check(path, version)
        paths = [each.path for each in operations]
        answers = self._wait("transaction", ", ".join(paths), transaction.commit_async())
        followers = (self._errors.RolledBackError, self._errors.RuntimeInconsistency)
        failures = [
            (path, answer) for path, answer in zip(paths, answers, strict=True) if isinstance(answer, Exception)
        ]
        for path, failure in failures:
            if not isinstance(failure, followers):
                raise self._translate("transaction", path, failure) from failure
        if failures:
            raise ConnectionFailed(f"ZooKeeper transaction of {failures[0][0]} failed: {failures[0][1]!r}")
        return [
            str(answer) if isinstance(each, CreateNode) else each.path
            for each, answer in zip(operations, answers, strict=True)
        ]

    def _read_all(self, operation: str, paths: Sequence[str], watch: OneShotWatch | None) -> list[Any]:
        """Read nodes together. Reads never wait for a connection: callers may know a better answer than a late one."""
        if self.is_away:
            first = paths[0] if paths else ""
            raise ConnectionFailed(f"Connection failed: ZooKeeper {operation} of {first}: {self._servers} is away")
        adapter = None if watch is None else _KazooWatch(watch)
        pending = [(path, getattr(self._kazoo, f"{operation}_async")(path, watch=adapter)) for path in paths]
        readings: list[Any] = []
        for path, answer in pending:
            try:
                readings.append(self._wait(operation, path, answer))
            except NodeMissing:
                readings.append(None)
        return readings

    def _call(self, operation: str, path: str, *arguments: Any, **options: Any) -> Any:
        answer = getattr(self._kazoo, f"{operation}_async")(path, *arguments, **options)
        return self._wait(operation, path, answer)

    def _wait(self, operation: str, path: str, answer: Any) -> Any:
        try:
            return answer.get(timeout=self._timeout_s)
        except self._kazoo.handler.timeout_exception as error:
            raise RpcTimeout(
                f"Operation timed out: ZooKeeper {operation} of {path} at {self._servers} after {self._timeout_s:g} s"
            ) from error
        except self._errors.KazooException as error:
            raise self._translate(operation, path, error) from error

    def _translate(self, operation: str, path: str, error: Exception) -> ClusterError:
        errors = self._errors
        call = f"ZooKeeper {operation} of {path} at {self._servers}"
        if isinstance(error, errors.NoNodeError):
            return NodeMissing(path)
        if isinstance(error, errors.NodeExistsError):
            return NodeExists(path)
        if isinstance(error, errors.NotEmptyError):
            return NodeNotEmpty(path)
        if isinstance(error, errors.BadVersionError):
            return NodeChanged(path)
        if isinstance(error, errors.SessionExpiredError):
            return SessionLost(f"{call} failed: the session has expired, another one is being opened")
        if isinstance(error, (errors.NoAuthError, errors.AuthFailedError, errors.InvalidACLError)):
            return ClusterError(f"{call} was refused ({error!r}); set ZK_AUTH=user:password")
        if isinstance(error, (errors.ConnectionLoss, errors.ConnectionClosedError)):
            return ConnectionFailed(f"Connection failed: {call}: {error!r}")
        return ClusterError(f"{call} failed: {error!r}")

    def _note_state(self, state: str) -> None:
        session_state = self._states[state]
        if session_state is SessionState.LOST:
            self._was_lost = True
            logger.warning("ZooKeeper session lost servers=%s", self._servers)
        elif session_state is SessionState.SUSPENDED and self._away_since_s is None:
            self._away_since_s = self._clock.monotonic_s()
        elif session_state is SessionState.CONNECTED:
            self._note_credentials()
        for listener in self._listeners:
            try:
                listener(session_state)
            except Exception:
                logger.exception("session listener failed state=%s", session_state.value)
        if session_state is SessionState.CONNECTED:
            was_lost, self._was_lost = self._was_lost, False
            self._away_since_s = None
            self._on_connected(was_lost)

    def _note_credentials(self) -> None:
        if (client_id := self._kazoo.client_id) is not None:
            self._credentials = int(client_id[0]), bytes(client_id[1])

    def _end_long_outage(self) -> None:
        """Give up a session that has surely expired.

        A server that restarted without its data refuses, for ever, clients that have seen a newer transaction; only
        another session gets through.
        """
        since_s = self._away_since_s
        if since_s is None or self._clock.monotonic_s() - since_s < 2 * self._session_timeout_s:
            return
        logger.warning("ZooKeeper away for two session timeouts, opening another session servers=%s", self._servers)
        self._away_since_s = self._clock.monotonic_s()
        self._kazoo.stop()
        with self._stopping:
            if not self._is_stopped:
                self._kazoo.start_async()


class _FirstAnswer:
    """Limits how long a new connection may stay without an answer; replaces two functions of kazoo's handler.

    A starting ZooKeeper accepts connections and may drop the first request of one without an answer. kazoo waits a
    session timeout for it, and the session expires meanwhile. The limit doubles with each connection that reaches it,
    so that a slow server gets the time that it needs. Only kazoo's thread of the connection calls this object.
    """

    def __init__(self, handler: Any, clock: Clock) -> None:
        self._connect = handler.create_connection
        self._select = handler.select
        self._clock = clock
        self._limit_s = _FIRST_ANSWER_S
        self._silent: Any = None

    def connect(self, *address: Any, timeout: float, **options: Any) -> Any:
        limit_s = min(timeout, self._limit_s)
        began_s = self._clock.monotonic_s()
        try:
            self._silent = self._connect(*address, timeout=limit_s, **options)
        except Exception:  # a refused connection takes no time
            if self._clock.monotonic_s() - began_s >= limit_s:
                self._limit_s *= 2
            raise
        return self._silent

    def select(self, reading: Sequence[Any], writing: Sequence[Any], failing: Sequence[Any], timeout_s: float) -> Any:
        if self._silent is None or self._silent not in reading:
            return self._select(reading, writing, failing, timeout_s)
        ready = self._select(reading, writing, failing, min(timeout_s, self._limit_s))
        if ready[0]:
            self._silent, self._limit_s = None, _FIRST_ANSWER_S
        else:
            self._limit_s *= 2
        return ready


_KINDS = {kind.name: kind for kind in NodeEventKind}


@dataclass(frozen=True, slots=True)
class _KazooWatch:
    """A watch in kazoo's form. Equal watches are equal here too, because kazoo keeps a set of watches per path."""

    watch: OneShotWatch

    def __call__(self, event: Any) -> None:
        kind = _KINDS.get(str(event.type))
        if kind is not None and event.path is not None:  # else the connection changed: listeners report it
            self.watch(NodeEvent(kind, str(event.path)))
