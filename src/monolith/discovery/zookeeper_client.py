"""One session with ZooKeeper: the only module that imports kazoo, and only when someone connects.

Every call has a deadline and every failure is one of ours. What nodes mean, nothing here knows.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from monolith.core.clock import Clock
from monolith.core.errors import ClusterError, ConfigError, ConnectionFailed, RpcTimeout, SessionLost
from monolith.discovery._periodic import Periodic
from monolith.discovery.address import checked_host, split_address

__all__ = ["NodeExists", "NodeMissing", "ZooKeeperClient", "checked_servers"]

logger = logging.getLogger(__name__)

_DEFAULT_PORT = 2181


class NodeMissing(Exception):
    """There is no such node; never leaves the package."""


class NodeExists(Exception):
    """There is such a node; never leaves the package."""


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
    """A session that is kept alive, and replaced by another one where the server has ended it.

    Args:
        servers: ``host:port,...``.
        auth: ``user:password`` of a digest, or None.
        session_timeout_s: How long the server waits for a silent client before its ephemeral nodes go.
        timeout_s: Deadline of one call.
        on_connected: Called in a thread of the client whenever a connection stands, with whether the session is new
            since the last time. It must return at once.
        clock: By which an outage is measured.
    """

    def __init__(
        self,
        servers: str,
        *,
        auth: str | None,
        session_timeout_s: float,
        timeout_s: float,
        on_connected: Callable[[bool], None],
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
        module = _load("kazoo.client")
        self._errors = _load("kazoo.exceptions")
        self._states = module.KazooState
        self._kazoo = module.KazooClient(
            hosts=servers,
            timeout=session_timeout_s,
            auth_data=[("digest", auth)] if auth else None,
            connection_retry={"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 5.0},
        )
        self._kazoo.add_listener(self._note_state)

    @property
    def session_id(self) -> int:
        """The number of the session, which nodes name as their owner."""
        return int(self._kazoo.client_id[0])

    @property
    def credentials(self) -> tuple[int, bytes]:
        """Number and password of the session; who has them can take it over."""
        number, password = self._kazoo.client_id
        return int(number), bytes(password)

    @property
    def is_away(self) -> bool:
        """Whether there is no connection at the moment."""
        return not self._kazoo.connected

    def start(self) -> None:
        """Open the session."""
        try:
            self._kazoo.start(timeout=self._timeout_s)
        except self._kazoo.handler.timeout_exception as error:
            raise ConnectionFailed(
                f"Connection failed: no ZooKeeper at {self._servers} within {self._timeout_s:g} s; check zk_server"
            ) from error
        except (self._errors.KazooException, OSError) as error:
            raise ConnectionFailed(f"Connection failed: ZooKeeper at {self._servers}: {error!r}") from error
        self._outages.start()

    def stop(self) -> None:
        """End the session, and with it its ephemeral nodes. Does not fail."""
        self._outages.stop()
        self._kazoo.remove_listener(self._note_state)
        try:
            self._kazoo.stop()
            self._kazoo.close()
        except Exception as error:
            logger.warning("ZooKeeper session was not ended cleanly servers=%s error=%r", self._servers, error)

    def create(self, path: str, data: bytes) -> None:
        """Make an ephemeral node, and the nodes above it."""
        self._call("create", path, data, ephemeral=True, makepath=True)

    def replace(self, path: str, data: bytes, version: int) -> None:
        """Delete a node of this version and make an ephemeral one of this session in its place, in one step."""
        transaction = self._kazoo.transaction()
        transaction.delete(path, version=version)
        transaction.create(path, data, ephemeral=True)
        answers = self._wait("replace", path, transaction.commit_async())
        failed = [answer for answer in answers if isinstance(answer, Exception)]
        if failed:
            raise ConnectionFailed(f"ZooKeeper replace of {path} failed: another process changed it meanwhile")

    def set(self, path: str, data: bytes) -> None:
        """Give a node new content."""
        self._call("set", path, data)

    def delete(self, path: str, version: int = -1) -> None:
        """Remove a node that has no children, of this version."""
        self._call("delete", path, version=version)

    def get(self, path: str, watch: Callable[[Any], None] | None = None) -> tuple[bytes, Any]:
        """Return content and state of a node."""
        return self.get_all([path], watch)[0] or self._missing(path)

    def get_all(
        self, paths: Sequence[str], watch: Callable[[Any], None] | None = None
    ) -> list[tuple[bytes, Any] | None]:
        """Return content and state of nodes, asked for together; None for one that is missing."""
        self._refuse_if_away("get", paths[0] if paths else "")
        asked = [(path, self._kazoo.get_async(path, watch=watch)) for path in paths]
        found: list[tuple[bytes, Any] | None] = []
        for path, answer in asked:
            try:
                found.append(self._wait("get", path, answer))
            except NodeMissing:
                found.append(None)
        return found

    def children(self, path: str, watch: Callable[[Any], None] | None = None) -> list[str]:
        """Return the names of the nodes below a node."""
        self._refuse_if_away("get_children", path)
        return list(self._call("get_children", path, watch=watch))

    def ensure(self, path: str) -> None:
        """Make a lasting node, and those above it, where there are none."""
        self._call("ensure_path", path)

    def _refuse_if_away(self, operation: str, path: str) -> None:
        """Reading does not wait for a connection: the caller may know a better answer than a late one."""
        if self.is_away:
            raise ConnectionFailed(f"Connection failed: ZooKeeper {operation} of {path}: {self._servers} is away")

    def _missing(self, path: str) -> tuple[bytes, Any]:
        raise NodeMissing(path)

    def _call(self, operation: str, path: str, *arguments: Any, **options: Any) -> Any:
        answer = getattr(self._kazoo, f"{operation}_async")(path, *arguments, **options)
        return self._wait(operation, path, answer)

    def _wait(self, operation: str, path: str, answer: Any) -> Any:
        errors = self._errors
        what = f"ZooKeeper {operation} of {path} at {self._servers}"
        try:
            return answer.get(timeout=self._timeout_s)
        except errors.NoNodeError as error:
            raise NodeMissing(path) from error
        except errors.NodeExistsError as error:
            raise NodeExists(path) from error
        except self._kazoo.handler.timeout_exception as error:
            raise RpcTimeout(f"Operation timed out: {what} after {self._timeout_s:g} s") from error
        except errors.SessionExpiredError as error:
            raise SessionLost(f"{what} failed: the session has expired, another one is being opened") from error
        except (errors.NoAuthError, errors.AuthFailedError, errors.InvalidACLError) as error:
            raise ClusterError(f"{what} was refused ({error!r}); set ZK_AUTH=user:password") from error
        except (errors.ConnectionLoss, errors.ConnectionClosedError, errors.BadVersionError) as error:
            raise ConnectionFailed(f"Connection failed: {what}: {error!r}") from error
        except errors.KazooException as error:
            raise ClusterError(f"{what} failed: {error!r}") from error

    def _note_state(self, state: str) -> None:
        if state == self._states.CONNECTED:
            was_lost, self._was_lost = self._was_lost, False
            self._away_since_s = None
            self._on_connected(was_lost)
        elif state == self._states.LOST:
            self._was_lost = True
            logger.warning("ZooKeeper session lost, ephemeral nodes are gone servers=%s", self._servers)
        elif self._away_since_s is None:
            self._away_since_s = self._clock.monotonic_s()

    def _end_long_outage(self) -> None:
        """Give up a session that has surely expired.

        A server that was started anew without its data refuses clients that have seen more than it has, for ever;
        only another session gets through.
        """
        since_s = self._away_since_s
        if since_s is None or self._clock.monotonic_s() - since_s < 2 * self._session_timeout_s:
            return
        logger.warning("ZooKeeper was away for two session time-outs, opening another session at=%s", self._servers)
        self._away_since_s = self._clock.monotonic_s()
        self._kazoo.stop()
        self._kazoo.start_async()
