"""A run finds the servers of a fleet through a real ZooKeeper, and pushes to each the rows of its shard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

import monolith as mt
from monolith.agent.node_paths import NodePaths
from monolith.agent.records import ModelState, ReplicaMeta
from monolith.agent.session import make_session
from monolith.embedding import MultiTable
from monolith.testing import eventually
from monolith.testing.processes.zookeeper_server import ZooKeeperServer, why_no_zookeeper
from monolith.training.hooks import Hook
from monolith.training.run import Run, StepResult
from push_target import PushTargetServer

PATHS = NodePaths("ads")


class Biases(mt.Model):
    def __init__(self) -> None:
        super().__init__()
        self.embedding_feature("user", slot=1)
        self.bias = self.embedding_slice("user", "bias", 2, out="add_n")

    def forward(self, batch: Any) -> mt.Output:
        return mt.Output(logits=self.bias(batch).sum(dim=1), label=batch.label[:, 0])


@pytest.fixture
def zookeeper() -> Iterator[ZooKeeperServer]:
    if (reason := why_no_zookeeper()) is not None:
        pytest.skip(reason)
    with ZooKeeperServer() as server:
        yield server


class Fleet(Hook):
    """Registers a second server during the run, and ends the wait when both have rows."""

    def __init__(self, address: str, servers: list[PushTargetServer]) -> None:
        self._session = make_session(address)
        self._session.start()
        self._servers = servers
        self.register(0)

    def register(self, shard: int) -> None:
        path = PATHS.replica("clicks", "ps", shard, 0)
        meta = ReplicaMeta(address=self._servers[shard].address, stat=ModelState.AVAILABLE.value, task=shard)
        self._session.ensure(path.rpartition("/")[0])
        self._session.create(path, meta.to_bytes())

    @override
    def after_step(self, run: Run, result: StepResult) -> None:
        if run.step in (2, 4):
            waited = self._servers[0 if run.step == 2 else 1]
            eventually(lambda: bool(waited.rows), message=f"rows of {waited.address} after step {run.step}")
        if run.step == 3:
            self.register(1)

    @override
    def on_end(self, run: Run, error: BaseException | None) -> None:
        self._session.stop()


def test_a_run_pushes_to_the_servers_that_a_fleet_has_and_gets(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    servers = [PushTargetServer(), PushTargetServer()]
    config = mt.RunConfig(
        model_dir=tmp_path,
        publish_interval_s=0.01,
        sync_targets=(f"zk://{zookeeper.address}/ads/clicks",),
        sync_signature_name="MonolithMultiHashTable_0/raw_assign",
        log_step_count_steps=0,
        save_summary_steps=0,
        threads=1,
    )
    ids = np.arange(1, 41).reshape(-1, 1)
    batches = [mt.data.Batch.from_arrays(ids={"user": ids}, label=np.ones((40, 1))) for _ in range(6)]
    try:
        made = mt.Estimator(Biases, config, hooks=[Fleet(zookeeper.address, servers)])
        made.train(batches)
        assert isinstance(made.store, MultiTable)
        wanted = {int(fid): made.store["user"].lookup([fid])[0].tolist() for fid in ids[:, 0]}
        even, odd = ({fid: row for (_, fid), row in server.rows.items()} for server in servers)
        assert odd == {fid: row for fid, row in wanted.items() if fid % 2}
        # Before the second server came, the fleet had one shard.
        assert {fid: row for fid, row in even.items() if fid % 2 == 0} == {
            fid: row for fid, row in wanted.items() if fid % 2 == 0
        }
        assert {name for name, _, _ in servers[1].requests} == {"MonolithMultiHashTable_1/raw_assign"}
    finally:
        for each in servers:
            each.stop()
