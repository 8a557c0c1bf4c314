"""The data plane between processes that are killed, stopped and abandoned: nothing hangs, nothing is applied twice.

Run as a program, this file is the server, or a client that pulls until it is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from monolith import _native
from monolith.core.errors import ClusterError, RpcTimeout, ShardUnavailable
from monolith.embedding import Sgd, SliceSpec, Table, TableSpec

TOKEN = b"between processes"
DIM = 16
HASH = _native.ps_tables_hash(["t"], [DIM])
RATES = [np.ones(1, np.float32)]
MANY = np.arange(50_000, dtype=np.int64)


def fan_out_of(addresses: list[str]) -> _native.PsFanOut:
    shards = len(addresses)
    connections = [
        _native.PsConnection(address, TOKEN, 20_000, shard=shard, shards=shards, tables_hash=HASH)
        for shard, address in enumerate(addresses)
    ]
    return _native.PsFanOut(connections, [DIM])


def pull(fan_out: _native.PsFanOut, ids: NDArray[np.int64], timeout_ms: int = 20_000) -> NDArray[np.float32]:
    rows = np.empty((len(ids), DIM), np.float32)
    fan_out.pull([ids], [rows], timeout_ms=timeout_ms)
    return rows


def push(
    fan_out: _native.PsFanOut, ids: NDArray[np.int64], client: int, sequence: int, timeout_ms: int = 20_000
) -> None:
    """Take 1 from the gradient, which adds 1 to every row."""
    grads, counts = np.full((len(ids), DIM), -1, np.float32), np.ones(len(ids), np.uint32)
    fan_out.push(
        [ids],
        [grads],
        [counts],
        RATES,
        client=client,
        sequence=sequence,
        time_s=1,
        step=1,
        timeout_ms=timeout_ms,
    )


class ServerProcess:
    """A shard in a process of its own."""

    def __init__(self, place: str, index: int = 0, count: int = 1) -> None:
        self.place = place
        command = [sys.executable, __file__, "serve", place, str(index), str(count)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        assert self.address, "the server did not start"

    def send(self, number: int) -> None:
        self.process.send_signal(number)
        if number == signal.SIGSTOP:  # it takes a moment to reach every thread
            os.waitpid(self.process.pid, os.WUNTRACED)

    def ask(self) -> tuple[int, int, int]:
        """Connections, descriptors and threads of the server."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("?\n")
        self.process.stdin.flush()
        connections, files, threads = map(int, self.process.stdout.readline().split())
        return connections, files, threads

    def stop(self) -> int:
        self.send(signal.SIGCONT)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        status = self.process.wait(timeout=60)
        self.process.stdout.close()
        return status

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        assert self.stop() == -signal.SIGKILL


@pytest.fixture
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    servers: list[ServerProcess] = []

    def start(index: int = 0, count: int = 1, place: str = "") -> ServerProcess:
        at = place or (str(tmp_path / f"s{index}") if request.param == "unix" else "127.0.0.1:0")
        servers.append(ServerProcess(at, index, count))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.stop()


def until(holds: Callable[[], bool]) -> None:
    turn = threading.Event()
    for _ in range(2000):
        if holds():
            return
        turn.wait(0.01)
    pytest.fail("it never came to pass")


@pytest.mark.parametrize("start", ["unix", "tcp"], indirect=True)
def test_a_killed_server_ends_every_call_and_its_successor_takes_over(start: Callable[..., ServerProcess]) -> None:
    server = start()
    fan_out = fan_out_of([server.address])
    errors: list[ClusterError] = []
    under_way = threading.Barrier(5)

    def work() -> None:
        pull(fan_out, MANY)
        under_way.wait()
        try:
            while True:
                pull(fan_out, MANY)
        except ClusterError as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    under_way.wait()
    server.kill()
    for thread in threads:
        thread.join()
    assert [type(error) for error in errors] == [ShardUnavailable] * 4
    assert all(error.retryable and server.address in str(error) for error in errors)

    place = server.place if server.address.startswith("unix:") else server.address.removeprefix("tcp:")
    start(place=place)
    assert not pull(fan_out, MANY[:9]).any()


@pytest.mark.parametrize("start", ["unix"], indirect=True)
def test_one_of_two_servers_dies_and_the_other_keeps_its_part(start: Callable[..., ServerProcess]) -> None:
    servers = [start(0, 2), start(1, 2)]
    fan_out = fan_out_of([server.address for server in servers])
    push(fan_out, MANY, client=1, sequence=1)
    servers[1].kill()
    with pytest.raises(ShardUnavailable, match=servers[1].address):
        push(fan_out, MANY, client=1, sequence=2)
    start(1, 2)  # empty: nobody restored it
    push(fan_out, MANY, client=1, sequence=2)
    rows = pull(fan_out, MANY)
    assert (rows[::2] == 2).all()
    assert (rows[1::2] == 1).all()


@pytest.mark.parametrize("start", ["unix", "tcp"], indirect=True)
def test_a_stopped_server_is_a_timeout_and_what_it_missed_is_applied_once(start: Callable[..., ServerProcess]) -> None:
    server = start()
    fan_out, other = fan_out_of([server.address]), fan_out_of([server.address])
    push(fan_out, MANY, client=1, sequence=1)
    pull(other, MANY)
    server.send(signal.SIGSTOP)
    with pytest.raises(RpcTimeout, match="no answer within") as caught:  # all of it lies in the socket's buffer
        push(fan_out, MANY[:10], client=1, sequence=3, timeout_ms=200)
    assert caught.value.retryable
    with pytest.raises(RpcTimeout, match="no answer within"):  # some of it does
        push(other, MANY, client=1, sequence=2, timeout_ms=200)
    with pytest.raises(RpcTimeout, match="no connection within"):
        pull(fan_out, MANY, timeout_ms=200)
    server.send(signal.SIGCONT)
    for _ in range(2):
        push(fan_out, MANY, client=1, sequence=2)
        push(fan_out, MANY[:10], client=1, sequence=3)
    rows = pull(fan_out, MANY)
    assert (rows[:10] == 3).all()
    assert (rows[10:] == 2).all()


@pytest.mark.parametrize("start", ["unix"], indirect=True)
def test_acknowledged_pushes_add_up_while_the_server_is_stopped_again_and_again(
    start: Callable[..., ServerProcess],
) -> None:
    server = start()
    fan_out = fan_out_of([server.address])
    ids = np.arange(2000, dtype=np.int64)
    push(fan_out, ids, client=99, sequence=0)
    attempts = [0, 0, 0]
    at_work = threading.Semaphore(0)

    def work(client: int) -> None:
        for sequence in range(12):
            while True:
                attempts[client] += 1
                at_work.release()
                try:
                    push(fan_out, ids, client, sequence, timeout_ms=40)
                    break
                except (RpcTimeout, ShardUnavailable) as error:
                    if not error.retryable:
                        raise

    threads = [threading.Thread(target=work, args=(client,)) for client in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        at_work.acquire(timeout=0.1)
        server.send(signal.SIGSTOP)
        threading.Event().wait(0.05)  # longer than the clients' patience
        server.send(signal.SIGCONT)
        threading.Event().wait(0.05)
    for thread in threads:
        thread.join()
    assert sum(attempts) >= 36
    assert (pull(fan_out, ids) == 37).all()


@pytest.mark.parametrize("start", ["unix"], indirect=True)
def test_killed_clients_leave_nothing_behind(start: Callable[..., ServerProcess]) -> None:
    server = start()
    pull(fan_out_of([server.address]), MANY[:5])
    until(lambda: server.ask()[0] == 0)
    before = server.ask()
    clients = [
        subprocess.Popen([sys.executable, __file__, "pull", server.address], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for client in clients:
        assert client.stdout is not None
        assert client.stdout.readline() == "pulling\n"
    assert server.ask()[0] == 3
    for client in clients:
        client.kill()
        client.communicate()
    # The thread of the first connection may have been ending when ``before`` was taken.
    until(lambda: all(now <= then for now, then in zip(server.ask(), before, strict=True)))


@pytest.mark.parametrize("start", ["unix"], indirect=True)
def test_a_server_stops_at_once_while_clients_hold_connections(start: Callable[..., ServerProcess]) -> None:
    server = start()
    fan_out = fan_out_of([server.address])
    pull(fan_out, MANY)
    assert server.stop() == 0
    with pytest.raises(ShardUnavailable):
        pull(fan_out, MANY)


def serve(place: str, index: int, count: int) -> None:
    table = Table(TableSpec("t", [SliceSpec(DIM, optimizer=Sgd(learning_rate=1.0))]))
    shard = _native.PsShard(index, count, [table._native], ["t"])
    if place.startswith("/"):
        listener = _native.PsListener(shard, unix_path=place, token=TOKEN)
    else:
        host, port = place.rsplit(":", 1)
        listener = _native.PsListener(shard, host=host, port=int(port), token=TOKEN)
    print(listener.address, flush=True)
    for _ in sys.stdin:
        files, threads = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
        print(listener.connections, files, threads, flush=True)
    listener.close()


def pull_until_killed(address: str) -> None:
    fan_out = fan_out_of([address])
    pull(fan_out, MANY)
    print("pulling", flush=True)
    while True:
        pull(fan_out, MANY)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        pull_until_killed(sys.argv[2])
