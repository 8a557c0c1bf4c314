"""Make and break ZooKeeper sessions in tests: with the in-memory twin, or with a real server.

Main types: ``Ensemble`` (the seam of the conformance suite), ``MemoryEnsemble`` and ``ServerEnsemble``. Each session
of a ``ServerEnsemble`` has its own proxy, so one connection can be cut alone.
"""

from __future__ import annotations

import importlib
from types import TracebackType
from typing import Protocol, Self

from monolith.core.clock import SystemClock
from monolith.discovery.zookeeper_client import ZooKeeperClient
from monolith.discovery.zookeeper_session import ZooKeeperSession
from monolith.testing.fakes.memory_zookeeper import MemoryZooKeeper, MemoryZooKeeperClient
from monolith.testing.processes.cutting_proxy import CuttingProxy

__all__ = ["Ensemble", "MemoryEnsemble", "ServerEnsemble"]


class Ensemble(Protocol):
    """Makes started sessions with one server, and breaks them."""

    def open(self) -> ZooKeeperSession:
        """Return a started session; closing the ensemble stops it."""

    def expire(self, session: ZooKeeperSession) -> None:
        """End a session on the server; its client opens a new one."""

    def disconnect(self, session: ZooKeeperSession) -> None:
        """Cut the connection of a session, which stays alive on the server."""

    def reconnect(self, session: ZooKeeperSession) -> None:
        """Let the session connect again."""


class MemoryEnsemble:
    """Sessions with one in-memory server; also a context manager."""

    def __init__(self) -> None:
        self._server = MemoryZooKeeper()
        self._clients: dict[int, MemoryZooKeeperClient] = {}

    def open(self) -> ZooKeeperSession:
        """Return a started session."""
        client = self._server.client()
        client.start()
        self._clients[id(client)] = client
        return client

    def expire(self, session: ZooKeeperSession) -> None:
        """End a session on the server."""
        self._server.expire(self._clients[id(session)])

    def disconnect(self, session: ZooKeeperSession) -> None:
        """Cut the connection of a session."""
        self._server.disconnect(self._clients[id(session)])

    def reconnect(self, session: ZooKeeperSession) -> None:
        """Let the session connect again."""
        self._server.reconnect(self._clients[id(session)])

    def close(self) -> None:
        """Stop all sessions."""
        for client in self._clients.values():
            client.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ServerEnsemble:
    """Sessions with a real server; also a context manager.

    Args:
        address: ``host:port`` of the server.
        session_timeout_s: Session timeout of the clients.
        timeout_s: Deadline of one call.
    """

    def __init__(self, address: str, *, session_timeout_s: float = 10.0, timeout_s: float = 30.0) -> None:
        self._address = address
        self._session_timeout_s = session_timeout_s
        self._timeout_s = timeout_s
        self._clients: dict[int, tuple[ZooKeeperClient, CuttingProxy]] = {}

    def open(self) -> ZooKeeperSession:
        """Return a started session."""
        proxy = CuttingProxy(self._address)
        client = ZooKeeperClient(
            proxy.address,
            auth=None,
            session_timeout_s=self._session_timeout_s,
            timeout_s=self._timeout_s,
            clock=SystemClock(),
        )
        self._clients[id(client)] = (client, proxy)
        client.start()
        return client

    def expire(self, session: ZooKeeperSession) -> None:
        """End a session on the server: a second client takes it over and closes it."""
        kazoo = importlib.import_module("kazoo.client")
        client, _ = self._clients[id(session)]
        thief = kazoo.KazooClient(self._address, client_id=client.credentials)
        thief.start(timeout=self._timeout_s)
        thief.stop()
        thief.close()

    def disconnect(self, session: ZooKeeperSession) -> None:
        """Cut the connection of a session."""
        self._clients[id(session)][1].cut()

    def reconnect(self, session: ZooKeeperSession) -> None:
        """Let the session connect again."""
        self._clients[id(session)][1].resume()

    def close(self) -> None:
        """Stop all sessions and their proxies."""
        for client, proxy in self._clients.values():
            proxy.resume()
            client.stop()
            proxy.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
