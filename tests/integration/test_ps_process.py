"""Real parameter servers in processes of their own: started, found, killed, recovered, told to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolith.core.errors import ConfigError, MonolithError, RpcTimeout
from monolith.core.retry import RetryPolicy
from monolith.discovery import FileDiscovery
from monolith.embedding import Adagrad, MultiTable, SliceSpec, TableSpec
from monolith.ps import PsClient, RemoteStore, Restart

TABLE = TableSpec("t", [SliceSpec(4, optimizer=Adagrad(0.1))], deterministic=True)
IDS = np.arange(1000)
COMMAND = [sys.executable, "-c", "from monolith.cli.main import main; main()", "ps"]
TRANSPORTS = pytest.mark.parametrize("transport", ["grpc", "data_plane"])


class Process:
    """``monolith ps``; there once it has said where."""

    def __init__(self, *arguments: str) -> None:
        self.child = subprocess.Popen(
            [*COMMAND, "--json", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        if not line:
            raise RuntimeError(self.child.communicate()[1])
        self.said: dict[str, Any] = json.loads(line)

    @property
    def address(self) -> str:
        return str(self.said["address"])

    @property
    def port(self) -> str:
        return self.address.rpartition(":")[2]

    def end(self, number: signal.Signals) -> tuple[int, str]:
        self.child.send_signal(number)
        _, errors = self.child.communicate(timeout=60)
        return self.child.returncode, errors


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    with ExitStack() as stack:

        def begin(*arguments: str) -> Process:
            process = Process(*arguments)
            stack.callback(process.child.communicate)
            stack.callback(process.child.kill)
            return process

        yield begin


def train(store: Any, steps: int, seed: int = 0) -> None:
    random = np.random.default_rng(seed)
    for step in range(steps):
        grads = random.standard_normal((len(IDS), 4)).astype(np.float32)
        store.push({"t": IDS}, {"t": grads}, time_s=step, step=step)


def test_it_says_where_it_listens_and_ends_cleanly_when_told(start: Callable[..., Process]) -> None:
    process = start("--metrics-port", "0")
    with PsClient([process.address]) as client:
        assert client.health_check().message == "OK"
    assert process.said["metrics_address"].startswith("127.0.0.1:")
    status, errors = process.end(signal.SIGTERM)
    assert status == 0
    assert "Traceback" not in errors
    assert "parameter server listening index=0 shards=1" in errors


def test_wrong_arguments_are_one_line(tmp_path: Path) -> None:
    for arguments, message in (
        (["--index", "2", "--num-ps", "2"], "index is 2 of 2 servers"),
        (["--recover-from", str(tmp_path)], "holds no snapshot"),
        (["--discovery", "gossip"], "discovery_type is 'gossip'"),
        (["--tls-cert", "a.pem"], "cert_file is given without key_file"),
    ):
        done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert [line for line in done.stderr.splitlines() if line.startswith("error: ") and message in line]
        assert "Traceback" not in done.stderr


def test_a_server_that_loses_its_place_stops(start: Callable[..., Process], tmp_path: Path) -> None:
    flags = ("--discovery", "file", "--discovery-folder", str(tmp_path), "--heartbeat-s", "0.1")
    older, newer = start(*flags), start(*flags)
    _, errors = older.child.communicate(timeout=60)
    assert older.child.returncode == 1
    assert "place in discovery lost to another server" in errors
    assert newer.child.poll() is None
    discovery = FileDiscovery(tmp_path)
    discovery.connect()
    assert [service.address for service in discovery.query("ps")] == [newer.address]
    discovery.close()


def test_servers_are_found_by_discovery_and_leave_it(start: Callable[..., Process], tmp_path: Path) -> None:
    flags = ("--num-ps", "2", "--discovery", "file", "--discovery-folder", str(tmp_path))
    servers = [start("--index", str(index), *flags) for index in range(2)]
    discovery = FileDiscovery(tmp_path)
    discovery.connect()
    found = [service.address for service in discovery.query("ps")]
    assert found == [server.address for server in servers]
    with RemoteStore(found, [TABLE]) as store:
        train(store, 1)
    assert servers[0].end(signal.SIGTERM)[0] == 0
    assert [service.index for service in discovery.query("ps")] == [1]
    discovery.close()


@TRANSPORTS
def test_one_server_and_one_client_give_the_bytes_of_local_tables(
    start: Callable[..., Process], transport: str
) -> None:
    local = MultiTable([TABLE])
    train(local, 5)
    with RemoteStore([start().address], [TABLE], transport=transport) as store:
        train(store, 5)
        assert store.pull({"t": IDS})["t"].tobytes() == local.pull({"t": IDS})["t"].tobytes()


@TRANSPORTS
def test_a_killed_server_recovers_and_training_goes_on(
    start: Callable[..., Process], tmp_path: Path, transport: str
) -> None:
    first, second = (start("--index", str(index), "--num-ps", "2") for index in range(2))
    told: list[Restart] = []
    with RemoteStore([first.address, second.address], [TABLE], transport=transport, on_restart=told.append) as store:
        train(store, 3)
        store.snapshot(tmp_path / "s")
        saved = store.pull({"t": IDS})["t"]
        assert second.end(signal.SIGKILL)[0] == -signal.SIGKILL
        start("--index", "1", "--num-ps", "2", "--port", second.port, "--recover-from", str(tmp_path / "s"))
        assert store.pull({"t": IDS})["t"].tobytes() == saved.tobytes()
        assert [(restart.index, restart.rows) for restart in told] == [(1, len(IDS) // 2)]
        train(store, 1)


def wait_until_stopped(pid: int) -> None:
    """A signal takes its time to reach the threads of a process: until then they answer."""
    for _ in range(6000):
        states = [Path(f"/proc/{pid}/task/{thread}/stat").read_text() for thread in os.listdir(f"/proc/{pid}/task")]
        if all(state.rpartition(")")[2].split()[0] == "T" for state in states):
            return
        threading.Event().wait(0.01)
    raise AssertionError("it does not stop")


@TRANSPORTS
def test_a_paused_server_holds_nobody_longer_than_the_deadline(start: Callable[..., Process], transport: str) -> None:
    process = start()
    quick = RetryPolicy(attempts=100, initial_backoff_s=0.01, max_backoff_s=0.05, deadline_s=1.0)
    with RemoteStore([process.address], [TABLE], transport=transport, timeout_s=0.3, retries=quick) as store:
        train(store, 1)
        before = store.pull({"t": IDS})["t"]
        os.kill(process.child.pid, signal.SIGSTOP)
        wait_until_stopped(process.child.pid)
        with pytest.raises(MonolithError, match=f"127.0.0.1:{process.port}|unix:"):
            store.pull({"t": IDS})
        os.kill(process.child.pid, signal.SIGCONT)
        patient = RetryPolicy(attempts=1000, initial_backoff_s=0.05, max_backoff_s=0.2, deadline_s=60.0)
        store._retries = patient
        assert store.pull({"t": IDS})["t"].tobytes() == before.tobytes()


def test_a_dead_client_leaves_no_connection_and_no_waiting_worker(start: Callable[..., Process]) -> None:
    process = start()
    code = f"""
import threading
import numpy as np
from monolith.ps import PsClient, RemoteStore
from monolith.embedding import TableSpec
store = RemoteStore([{process.address!r}], [TableSpec.from_json({TABLE.to_json()!r})])
store.push({{"t": np.arange(10)}}, {{"t": np.ones((10, 4), np.float32)}})
store.cut()
client = PsClient([{process.address!r}])
threading.Thread(target=client.barrier, args=("b", 0, 2, 600_000), daemon=True).start()
print("ready", flush=True)
input()
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    before = len(os.listdir(f"/proc/{process.child.pid}/fd"))
    child.kill()
    child.communicate()
    with PsClient([process.address]) as client:
        error: MonolithError | None = None
        while not isinstance(
            error, RpcTimeout
        ):  # until the server has noticed that worker 0 is gone, and takes another
            with pytest.raises((RpcTimeout, ConfigError), match=r"timeout|already arrived") as refusal:
                client.barrier("b", 0, 2, 1)
            error = refusal.value
    with RemoteStore([process.address], [TABLE]) as store:
        store.cut().drop()  # takes the place of the dead client's
    assert len(os.listdir(f"/proc/{process.child.pid}/fd")) <= before
