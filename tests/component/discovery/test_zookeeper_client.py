from __future__ import annotations

import importlib
import socket
import struct
import threading
from typing import Any

import pytest

from monolith.core.clock import SystemClock
from monolith.discovery.zookeeper_client import ZooKeeperClient
from monolith.testing import FakeClock
from monolith.testing.eventually import eventually

pytest.importorskip("kazoo", reason="kazoo is not installed: pip install 'monolith[zookeeper]'")

AN_HOUR_S = 3600.0


class StartingServer:
    """Answers no request on the first ``silent`` connections, and opens a session on later ones."""

    def __init__(self, silent: int) -> None:
        self._silent = silent
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def attempts(self) -> int:
        return len(self._connections)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in self._connections:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._connections.append(connection)
            if self.attempts > self._silent:
                self._open_session(connection)

    def _open_session(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as requests:
            (length,) = struct.unpack(">i", requests.read(4))
            _, _, timeout_ms = struct.unpack(">iqi", requests.read(length)[:16])
        answer = struct.pack(">iiqi", 0, timeout_ms, 7, 16) + bytes(16) + b"\0"
        connection.sendall(struct.pack(">i", len(answer)) + answer)


def test_a_server_that_accepts_and_stays_silent_is_tried_again_before_the_session_times_out() -> None:
    server = StartingServer(silent=1)
    client = ZooKeeperClient(
        server.address, auth=None, session_timeout_s=AN_HOUR_S, timeout_s=30.0, clock=SystemClock()
    )
    try:
        client.start()
        assert client.session_id == 7
        assert server.attempts == 2
    finally:
        server.close()
        client.stop()


@pytest.mark.parametrize(("is_refused", "limits_s"), [(False, [1, 2, 4]), (True, [1, 1, 1])])
def test_a_server_that_is_slow_to_connect_gets_more_time_and_one_that_refuses_does_not(
    monkeypatch: pytest.MonkeyPatch, is_refused: bool, limits_s: list[float]
) -> None:
    handler = importlib.import_module("kazoo.handlers.threading").SequentialThreadingHandler
    connect, clock, given_s = handler.create_connection, FakeClock(), list[float]()

    def connect_late(self: Any, *, timeout: float, **options: Any) -> Any:
        given_s.append(timeout)
        if len(given_s) == 3:
            return connect(self, timeout=30.0, **options)
        if is_refused:
            raise ConnectionRefusedError
        clock.advance_s(timeout)
        raise TimeoutError

    monkeypatch.setattr(handler, "create_connection", connect_late)
    server = StartingServer(silent=0)
    client = ZooKeeperClient(server.address, auth=None, session_timeout_s=AN_HOUR_S, timeout_s=30.0, clock=clock)
    try:
        client.start()
        assert given_s == limits_s
    finally:
        server.close()
        client.stop()


def test_a_client_that_stops_while_it_gives_up_an_outage_opens_no_other_session() -> None:
    server = StartingServer(silent=0)
    clock = FakeClock()
    client = ZooKeeperClient(server.address, auth=None, session_timeout_s=AN_HOUR_S, timeout_s=30.0, clock=clock)
    client.start()
    server.close()
    eventually(lambda: client.is_away)
    clock.advance_s(3 * AN_HOUR_S)
    end_session = client._kazoo.stop

    def end_session_and_stop() -> None:
        end_session()
        client.stop()

    client._kazoo.stop = end_session_and_stop
    client._end_long_outage()
    assert not [thread for thread in threading.enumerate() if "zk_loop" in thread.name]
