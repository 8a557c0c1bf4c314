"""An entry and servers of its parts as processes: every answer is of one cut, also when a replica is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import pairing_model
from commands import Command, Shell, wait_until

import monolith as mt
from monolith.core.clock import SystemClock
from monolith.embedding import MultiTable
from monolith.export import ExportOptions, export_model
from monolith.serving import Client
from monolith.sync import LocalRows, Publisher
from monolith.sync.stream_server import StreamServer

VALUES = {"user_id": [[2]], "item_id": [[3]]}
"""Of one id on either shard."""
IDS = {"user_id": mt.fid.switch_slot(np.array([2]), 1), "item_id": mt.fid.switch_slot(np.array([3]), 2)}


class Trainer:
    """Publishes cuts whose two rows and one weight have the same number, as fast as it can."""

    def __init__(self, root: Path) -> None:
        self.tables = MultiTable(pairing_model.Pairs().declaration.table_specs())
        self.number = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go_on)
        weights = lambda: {"steps": np.array([self.value], np.float32)}  # noqa: E731
        clock = SystemClock()
        self.publisher = Publisher(root, LocalRows(root, self.tables, clock=clock), weights, clock=clock)

    @property
    def value(self) -> int:
        """What is everywhere in a cut; small enough for three of them to be told apart in one float."""
        return 1 + self.number % 200

    def publish(self) -> None:
        self.number += 1
        for name, ids in IDS.items():
            self.tables[name].assign(ids, [[self.value]])
        self.publisher.publish()

    def _go_on(self) -> None:
        while not self._ended.wait(0.05):
            self.publish()

    def __enter__(self) -> Trainer:
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._ended.set()
        self._thread.join()
        self.publisher.close()


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports")
    made = mt.Estimator(pairing_model.Pairs)
    options = ExportOptions(layout="distributed", shards=2)
    export_model(made.model, made.store, folder, name="m", step=1, version=1, options=options)
    return folder


class Servers:
    """``monolith serve`` of parts, each a process."""

    def __init__(self, folder: Path, exports: Path, source: object) -> None:
        self._shell, self._exports, self._source = Shell(folder), exports, source
        self._count = 0
        self.all: list[Command] = []

    def start(self, part: str, *more: object) -> tuple[Command, str]:
        self._count += 1
        command = self._shell.start(
            *("serve", self._exports / part, "--name", part, "--sync-from", self._source, "--json"),
            *("--port", 0, "--rest-port", -1, "--sync-poll-s", 0.01 * self._count, *more),
        )
        self.all.append(command)
        wait_until(lambda: command.out.exists() and command.out.read_text().endswith("}\n"), command)
        address = json.loads(command.out.read_text())["address"]
        with Client(address, model=part, timeout_s=60) as client:
            wait_until(lambda: any(each.state == "AVAILABLE" for each in client.status()), command)
        return command, address


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def _kill(command: Command) -> None:
    if command.process.is_alive():
        assert command.process.pid is not None
        os.kill(command.process.pid, signal.SIGKILL)
        command.process.join()


@pytest.mark.parametrize("way", ["folder", "stream"])
def test_every_answer_is_of_one_cut_though_a_replica_is_killed(
    way: str, exports: Path, tmp_path: Path, stack: ExitStack
) -> None:
    trainer = Trainer(tmp_path / "published")
    trainer.publish()
    source: object = tmp_path / "published"
    if way == "stream":
        source = stack.enter_context(StreamServer(tmp_path / "published")).address
    servers = Servers(tmp_path, exports, source)
    stack.callback(lambda: [_kill(each) for each in servers.all])
    (_, zero), (doomed, one), (_, other) = (servers.start(part) for part in ("ps_0", "ps_1", "ps_1"))
    remote = ["--remote", f"ps_0={zero}", "--remote", f"ps_1={one},{other}", "--remote-timeout-ms", 30_000]
    _, entry = servers.start("entry", *remote)
    client = stack.enter_context(Client(entry, model="entry", timeout_s=60))
    seen: list[int] = []

    def watch(cuts: int) -> None:
        fresh: set[int] = set()
        while len(fresh) < cuts:
            told = int(client.predict(VALUES)["count"][0])
            assert told % 256 == told // 256 % 256 == told // 65536, f"{told:#x} is of different cuts"
            fresh.add(told)
            seen.append(told)

    with trainer:
        watch(8)
        _kill(doomed)
        watch(8)
    assert max(seen) > min(seen) > 0
