"""An entry and servers of its parts as processes: every answer is of one cut, also when a replica is killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import monolith as mt
import pairing_model
from commands import Shell
from monolith.export import ExportOptions, export_model
from monolith.sync.feed_server import FeedServer
from monolith.testing.fakes.published import PublishedTables
from served_model import ServedModel

VALUES = {"user_id": [[2]], "item_id": [[3]]}
"""Of one id on either shard."""
IDS = {"user_id": mt.fid.switch_slot(np.array([2]), 1), "item_id": mt.fid.switch_slot(np.array([3]), 2)}


class Trainer(PublishedTables):
    """Publishes cuts whose two rows and one weight have the same number, as fast as it can."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, pairing_model.Pairs().declaration.table_specs(), {"steps": [0]})
        self._number = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go_on)

    def publish(self) -> None:
        self._number += 1
        value = 1 + self._number % 200  # small enough for three of them to be told apart in one float
        self.weights["steps"][0] = value
        for name, ids in IDS.items():
            self.tables[name].assign(ids, [[value]])
        self.publish_now()

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


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


@pytest.mark.parametrize("way", ["folder", "stream"])
def test_every_answer_is_of_one_cut_though_a_replica_is_killed(
    way: str, exports: Path, tmp_path: Path, stack: ExitStack
) -> None:
    trainer = Trainer(tmp_path / "published")
    trainer.publish()
    source: object = tmp_path / "published"
    if way == "stream":
        source = stack.enter_context(FeedServer(tmp_path / "published")).address
    shell = Shell(tmp_path)

    def start(part: str, poll_s: float, *more: object) -> ServedModel:
        flags = ("--sync-from", source, "--sync-poll-s", poll_s, *more)
        return stack.enter_context(ServedModel(shell, exports / part, *flags, name=part))

    zero, doomed, other = start("ps_0", 0.01), start("ps_1", 0.02), start("ps_1", 0.03)
    replicas = f"ps_1={doomed.address},{other.address}"
    remote = ("--remote", f"ps_0={zero.address}", "--remote", replicas, "--remote-timeout-ms", 30_000)
    client = start("entry", 0.04, *remote).client
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
        doomed.close()
        watch(8)
    assert max(seen) > min(seen) > 0
