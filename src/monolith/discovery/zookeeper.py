"""Discovery through ZooKeeper: the ephemeral node ``/monolith/<job>/<type>.<index>`` holds ``host:port``.

A node disappears with its process. It is created again after a lost session, and renewed every half hour in case an
operator has removed it. While ZooKeeper is unreachable, queries return the last known services.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from typing import Any, ClassVar

from typing_extensions import override

from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import AlreadyRegistered, ConfigError, ConnectionFailed, RpcTimeout, SessionLost
from monolith.core.retry import RetryPolicy, retry
from monolith.discovery._backend import Backend
from monolith.discovery._periodic import Periodic
from monolith.discovery._watching import LookingWatch
from monolith.discovery.address import split_address
from monolith.discovery.base import Callback, ServiceInfo, checked_name, in_order
from monolith.discovery.zookeeper_client import NodeExists, NodeMissing, ZooKeeperClient, checked_servers

__all__ = ["ZooKeeperDiscovery", "checked_root"]

logger = logging.getLogger(__name__)

_RENEWAL_PERIOD_S = 30 * 60.0
# The server notifies watches; a read this often finds changes whose notification was lost.
_WATCH_PERIOD_S = 30.0
_RETRY = RetryPolicy(attempts=3, initial_backoff_s=5.0, max_backoff_s=5.0, jitter=0.0)


def checked_root(root: str) -> str:
    """Return the path above the jobs, or raise ``ConfigError``."""
    if not re.fullmatch(r"(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+", root):
        raise ConfigError(f"ZooKeeper connect invalid base_path: {root!r}; give a path such as /monolith")
    return root


class ZooKeeperDiscovery(Backend):
    """Services as ephemeral nodes.

    Args:
        servers: ``host:port,...``.
        job: The name of the job.
        auth: ``user:password`` for digest authentication (ZK_AUTH), or None.
        root: The path above the jobs.
        session_timeout_s: How long a silent service stays listed.
        timeout_s: Timeout of one call to ZooKeeper; ``register`` and others make several calls, see ``retries``.
        renewal_period_s: Seconds between renewals of own registrations.
        retries: Retries of a failed change.
        clock: Measures the pauses between retries.

    Raises:
        ConfigError: An argument is invalid. ``connect`` raises it if kazoo is missing.
    """

    kind: ClassVar[str] = "zookeeper"

    def __init__(
        self,
        servers: str,
        job: str,
        *,
        auth: str | None = None,
        root: str = "/monolith",
        session_timeout_s: float = 30.0,
        timeout_s: float = 10.0,
        renewal_period_s: float = _RENEWAL_PERIOD_S,
        retries: RetryPolicy = _RETRY,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(watch_interval_s=_WATCH_PERIOD_S)
        self._servers = checked_servers(servers)
        self._folder = f"{checked_root(root)}/{checked_name('job', job)}"
        if auth is not None and ":" not in auth:
            raise ConfigError("ZK_AUTH has no ':'; give user:password")
        self._auth = auth
        self._session_timeout_s = session_timeout_s
        self._timeout_s = timeout_s
        self._retries = retries
        self._clock = clock or SystemClock()
        self._renewals = Periodic(
            "zookeeper-renewal", self.renew_all, interval_s=renewal_period_s, retry_s=retries.initial_backoff_s
        )
        self._last_known: dict[str, list[ServiceInfo]] = {}
        self._last_known_lock = threading.Lock()
        self._client: ZooKeeperClient | None = None

    @property
    def session(self) -> ZooKeeperClient:
        """The session with ZooKeeper, once connected."""
        client = self._client
        if client is None:
            raise ConnectionFailed("zookeeper discovery is not connected; call connect() first")
        return client

    def renew_all(self) -> None:
        """Create own registrations that are missing in ZooKeeper."""
        with self._writing:
            for service in list(self._own.values()):
                if self._is_closed.is_set():
                    return
                try:
                    self._put(service, is_renewal=True)
                except AlreadyRegistered as error:
                    logger.warning("registration not renewed id=%s error=%s", service.id, error)

    # --- Backend ---

    @override
    def _open(self) -> None:
        client = ZooKeeperClient(
            self._servers,
            auth=self._auth,
            session_timeout_s=self._session_timeout_s,
            timeout_s=self._timeout_s,
            on_connected=self._note_connected,
            clock=self._clock,
        )
        client.start()
        self._client = client
        self._renewals.start()

    @override
    def _publish(self, service: ServiceInfo) -> None:
        retry(self._retries, lambda: self._put(service, is_renewal=False), clock=self._clock)

    @override
    def _renew(self, service: ServiceInfo) -> None:
        retry(self._retries, lambda: self._put(service, is_renewal=True), clock=self._clock)

    @override
    def _withdraw(self, service: ServiceInfo) -> None:
        # No retry at close: the end of the session removes the node as well.
        if self._is_closed.is_set():
            self._take(service)
        else:
            retry(self._retries, lambda: self._take(service), clock=self._clock)

    @override
    def _read(self, service_type: str) -> list[ServiceInfo]:
        return self._look(service_type, None)

    @override
    def _shut(self) -> None:
        self._renewals.stop()
        self.session.stop()

    @override
    def _make_watch(self, service_type: str, callback: Callback) -> LookingWatch:
        def notice(_: Any) -> None:
            watch.wake()

        watch = LookingWatch(
            lambda: in_order(self._look(service_type, notice)),
            callback,
            interval_s=self._watch_interval_s,
            on_close=self._drop_watch,
        )
        return watch

    # --- nodes ---

    def _note_connected(self, is_new_session: bool) -> None:
        if is_new_session:
            self._renewals.wake()
        with self._state_lock:
            watches = list(self._watches)
        for watch in watches:
            watch.wake()

    def _path(self, service: ServiceInfo) -> str:
        return f"{self._folder}/{service.service_type}.{service.index}"

    def _put(self, service: ServiceInfo, *, is_renewal: bool) -> None:
        """Store the address in a node of this session. A renewal replaces no other process."""
        path, data = self._path(service), service.address.encode()
        try:
            self.session.create(path, data, ephemeral=True)
        except NodeExists:
            pass
        else:
            return
        try:
            content, stat = self.session.get(path)
            if stat.ephemeralOwner == self.session.session_id:
                if content != data:
                    self.session.set(path, data)
            elif is_renewal and content != data:
                raise AlreadyRegistered(
                    f"Service already registered: {service.id} was taken over by {content.decode(errors='replace')}"
                )
            else:
                # A node of another session ends with that session, so changing its content is not enough.
                self.session.replace(path, data, stat.version)
        except NodeMissing as error:
            raise ConnectionFailed(f"ZooKeeper register of {path} failed: another process removed the node") from error

    def _take(self, service: ServiceInfo) -> None:
        path = self._path(service)
        try:
            _, stat = self.session.get(path)
            if stat.ephemeralOwner == self.session.session_id:
                self.session.delete(path, stat.version)
        except NodeMissing:
            return

    def _look(self, service_type: str, notice: Callable[[Any], None] | None) -> list[ServiceInfo]:
        try:
            services = self._fetch(service_type, notice)
        except (ConnectionFailed, SessionLost, RpcTimeout) as error:
            with self._last_known_lock:
                known = self._last_known.get(service_type)
            if known is None or notice is not None:
                raise
            logger.warning("ZooKeeper unreachable, returning last known services type=%s error=%s", service_type, error)
            return known
        with self._last_known_lock:
            self._last_known[service_type] = services
        return services

    def _fetch(self, service_type: str, notice: Callable[[Any], None] | None) -> list[ServiceInfo]:
        try:
            names = self.session.children(self._folder, notice)
        except NodeMissing:
            # Created here, so that the watch has a node; the folder of a job outlives its processes.
            self.session.ensure(self._folder)
            names = self.session.children(self._folder, notice)
        names = [name for name in names if name.rpartition(".")[0] == service_type]
        contents = self.session.get_all([f"{self._folder}/{name}" for name in names], notice)
        services = [_service(name, content[0]) for name, content in zip(names, contents, strict=True) if content]
        return [service for service in services if service is not None]


def _service(name: str, content: bytes) -> ServiceInfo | None:
    """Return the service in a node; None for an empty node, which is withdrawn, or an invalid one."""
    service_type, _, index = name.rpartition(".")
    if not content:
        return None
    try:
        host, port = split_address(content.decode())
        if index.isascii() and index.isdigit():
            return ServiceInfo(service_type=service_type, index=int(index), host=host, port=port)
        return ServiceInfo(service_type=service_type, host=host, port=port, metadata={"index": index})
    except (ConfigError, UnicodeDecodeError) as error:
        logger.warning("invalid address in discovery node name=%s error=%s", name, error)
        return None
