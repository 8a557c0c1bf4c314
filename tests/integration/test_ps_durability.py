"""``monolith ps`` processes that are killed without a word: what was durable is there, and nothing is there twice."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Command, Shell, wait_until
from monolith.artifacts.delta_log import DeltaReader
from monolith.embedding import Adagrad, MultiTable, Sgd, SliceSpec, TableSpec
from monolith.ps import PsClient, RemoteStore
from monolith.ps.push_marks import read_marks
from monolith.testing.eventually import eventually

TABLE = TableSpec("t", [SliceSpec(4, optimizer=Adagrad(0.1))], deterministic=True)
COUNTER = TableSpec("t", [SliceSpec(1, optimizer=Sgd(1.0))], deterministic=True)
IDS = np.arange(200)
TRANSPORTS = pytest.mark.parametrize("transport", ["grpc", "data_plane"])


class Server:
    """One of two servers with a log of its own; started again as often as it is killed."""

    def __init__(self, shell: Shell, index: int, interval_s: float) -> None:
        self.log = shell.folder / "log" / f"ps_{index}"
        self._shell = shell
        self._arguments = ["ps", "--json", "--index", index, "--num-ps", 2, "--delta-log", self.log]
        self._arguments += ["--delta-interval", interval_s]
        self.address = ""
        self._command: Command
        self.start()

    def start(self, *arguments: object) -> None:
        port = self.address.rpartition(":")[2] or 0
        command = self._command = self._shell.start(*self._arguments, "--port", port, *arguments)
        wait_until(lambda: command.out.exists() and command.out.read_text().endswith("\n"), command)
        self.address = json.loads(command.out.read_text())["address"]

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        if self._command.process.pid is not None and self._command.process.is_alive():
            os.kill(self._command.process.pid, number)
        return self._command.end()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[float], list[Server]]]:
    shell = Shell(tmp_path)
    with ExitStack() as stack:

        def begin(interval_s: float) -> list[Server]:
            servers = []
            for index in range(2):
                servers.append(Server(shell, index, interval_s))
                stack.callback(servers[-1].end)
            return servers

        yield begin


def train(store: Any, *steps: int) -> None:
    for step in steps:
        grads = np.random.default_rng(step).standard_normal((len(IDS), 4)).astype(np.float32)
        store.push({"t": IDS}, {"t": grads}, time_s=step, step=step)


def reference(*steps: int) -> bytes:
    tables = MultiTable([TABLE])
    train(tables, *steps)
    return rows(tables)


def rows(store: Any) -> bytes:
    return bytes(store.pull({"t": IDS})["t"].tobytes())


@TRANSPORTS
def test_killed_servers_come_back_with_what_was_durable_from_the_log_and_from_a_checkpoint(
    start: Callable[[float], list[Server]], tmp_path: Path, transport: Any
) -> None:
    servers = start(1e6)  # segments are written when the test says so
    with RemoteStore([server.address for server in servers], [TABLE], transport=transport) as store:
        train(store, 0, 1)
        store.flush_deltas()
        for server in servers:
            assert server.end() == -signal.SIGKILL
            server.start()
        # The store refuses servers without rows unless told otherwise: these have theirs once they know their tables.
        assert rows(store) == reference(0, 1), "there was no checkpoint yet"
        train(store, 2)
        store.snapshot(tmp_path / "tables")
        assert store.compact_deltas(tmp_path / "tables") > 0
        train(store, 3)
        store.flush_deltas()
        train(store, 4)
        for server in servers:
            assert server.end() == -signal.SIGKILL
            server.start("--recover-from", tmp_path / "tables")
        assert rows(store) == reference(0, 1, 2, 3), "what was acknowledged after the last segment is what a kill costs"
        train(store, 5)
        assert servers[0].end(signal.SIGTERM) == 0
        servers[0].start("--recover-from", tmp_path / "tables")
        assert rows(store) == reference(0, 1, 2, 3, 5), "one that is told to end loses nothing"


@TRANSPORTS
def test_pushes_under_way_while_a_server_is_killed_are_applied_once_or_lost_with_the_last_interval(
    start: Callable[[float], list[Server]], transport: Any
) -> None:
    """Every push adds 1 on both servers; the second one is killed twice."""
    _, second = servers = start(0.05)
    ids, ended, in_flight = np.array([0, 1]), threading.Event(), [0]

    def note(_: object) -> None:
        in_flight[0] = store._sequence  # called between two attempts of the one push that is under way

    with RemoteStore([server.address for server in servers], [COUNTER], transport=transport, on_restart=note) as store:
        acknowledged = [0]

        def push() -> None:
            while not ended.is_set():
                store.push({"t": ids}, {"t": -np.ones((2, 1), np.float32)})
                acknowledged[0] += 1

        def wait(is_so: Callable[[], bool]) -> None:
            eventually(lambda: is_so() or not pushing.is_alive())
            assert pushing.is_alive()

        pushing = threading.Thread(target=push)
        pushing.start()
        try:
            for _ in range(2):
                began = acknowledged[0]
                wait(lambda: acknowledged[0] > began + 20)  # noqa: B023
                safe, newest = acknowledged[0], DeltaReader(second.log).newest()
                wait(lambda: DeltaReader(second.log).newest() > newest + 1)  # noqa: B023
                assert second.end() == -signal.SIGKILL
                durable = MultiTable([COUNTER])
                replayed = DeltaReader(second.log).replay(durable)
                ((highest, _),) = read_marks(replayed.marks).values()
                assert highest >= safe, "what was acknowledged before the last segment began is durable"
                in_flight[0] = 0
                second.start()
                wait(lambda: in_flight[0] > 0)
        finally:
            ended.set()
            pushing.join(120)
        kept, found = (int(value) for value in store.pull({"t": ids})["t"].ravel())
        assert kept == acknowledged[0], "the other server has all of them, each once"
        again = acknowledged[0] - max(highest, in_flight[0] - 1)
        assert found == int(durable.pull({"t": ids})["t"][1, 0]) + again, "and this one what it had, and then each once"
        with PsClient([server.address for server in servers]) as client:
            assert client.get_stats(1).delta_sequence >= 2
