from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from monolith.testing.eventually import eventually
from monolith.testing.processes.cutting_proxy import CuttingProxy

SOON_S = 60.0


class Echo:
    """Answers every byte with itself."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.heard = bytearray()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._listening.accept()
            except OSError:
                return
            self._open.append(one)
            threading.Thread(target=self._answer, args=(one,), daemon=True).start()

    def _answer(self, one: socket.socket) -> None:
        with one:
            try:
                while part := one.recv(4096):
                    self.heard += part
                    one.sendall(part)
            except OSError:
                pass

    def close(self) -> None:
        if self._listening.fileno() < 0:
            return
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for one in self._open:
            one.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[CuttingProxy]:
    with CuttingProxy(echo.address) as made:
        yield made


def connect(proxy: CuttingProxy) -> socket.socket:
    host, port = proxy.address.split(":")
    return socket.create_connection((host, int(port)), timeout=SOON_S)


def read(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = connection.recv(count - len(found))
        if not part:
            break
        found += part
    return found


def wait_until_heard(echo: Echo, count: int) -> None:
    eventually(lambda: len(echo.heard) >= count)


def test_bytes_pass_in_both_directions_and_the_end_too(proxy: CuttingProxy) -> None:
    sent = bytes(range(256)) * 2000
    with connect(proxy) as connection:
        writer = threading.Thread(target=connection.sendall, args=(sent,))
        writer.start()
        assert read(connection, len(sent)) == sent
        writer.join()
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


def test_a_cut_breaks_connections_and_refuses_new_ones_until_it_is_healed(proxy: CuttingProxy) -> None:
    with connect(proxy) as connection:
        connection.sendall(b"a")
        assert read(connection, 1) == b"a"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with pytest.raises(ConnectionResetError), connect(proxy) as refused:
        refused.recv(1)
    assert proxy.connections == 0
    proxy.resume()
    with connect(proxy) as connection:
        connection.sendall(b"b")
        assert read(connection, 1) == b"b"


def test_delayed_bytes_arrive_after_the_repair(proxy: CuttingProxy, echo: Echo) -> None:
    with connect(proxy) as connection:
        connection.sendall(b"a")
        assert read(connection, 1) == b"a"
        proxy.hang()
        connection.sendall(b"b")
        connection.settimeout(0.05)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        assert echo.heard == b"a"
        connection.settimeout(SOON_S)
        proxy.resume()
        assert read(connection, 1) == b"b"


def test_answers_alone_can_be_held_up_and_lost(proxy: CuttingProxy, echo: Echo) -> None:
    with connect(proxy) as connection:
        connection.sendall(b"a")
        assert read(connection, 1) == b"a"
        proxy.hang(requests=False)
        connection.sendall(b"b")
        wait_until_heard(echo, 2)
        proxy.drop()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    proxy.resume()
    with connect(proxy) as connection:
        connection.sendall(b"c")
        assert read(connection, 1) == b"c", "what was held up is gone with its connection"


def test_a_server_that_is_away_is_a_reset(echo: Echo) -> None:
    echo.close()
    with CuttingProxy(echo.address) as proxy, pytest.raises(ConnectionResetError), connect(proxy) as connection:
        connection.recv(1)


def test_closing_leaves_no_thread_and_works_twice(echo: Echo) -> None:
    with CuttingProxy(echo.address) as proxy, connect(proxy) as connection:
        connection.sendall(b"a")
        assert read(connection, 1) == b"a"
        proxy.hang()
        connection.sendall(b"b")
        proxy.close()
        proxy.close()
    assert not any(thread.name == f"proxy {proxy.address}" for thread in threading.enumerate())


def test_a_proxy_accepts_again_after_its_process_had_no_free_descriptors() -> None:
    program = f"""
import contextlib, resource, socket, time
from monolith.testing.processes.cutting_proxy import CuttingProxy

with socket.create_server(("127.0.0.1", 0)) as server:
    with CuttingProxy("127.0.0.1:%d" % server.getsockname()[1]) as proxy:
        host, port = proxy.address.split(":")
        clients = [socket.socket(), socket.socket()]  # accept may have reserved a descriptor for one of them
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        for client in clients:
            client.connect((host, int(port)))
        time.sleep(0.3)  # accept fails meanwhile
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for client in clients:
            with contextlib.suppress(OSError):
                client.sendall(b"a")
        server.settimeout({SOON_S})
        passed, _ = server.accept()
        passed.settimeout({SOON_S})
        assert passed.recv(1) == b"a"
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=2 * SOON_S)
