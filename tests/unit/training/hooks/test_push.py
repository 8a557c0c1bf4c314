"""A run that pushes its rows to a model server of the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import monolith as mt
from monolith.core.errors import ConfigError
from monolith.demo.world import World
from monolith.rpc.security import Security
from monolith.training.config import PushConfig
from monolith.training.default_hooks import share_metrics_registry
from monolith.training.hooks import PrometheusHook, PublishHook, PushHook
from monolith.training.metrics import RunMetrics
from push_target import PushTargetServer

CLICKS = World(users=30, items=20, seed=4).clicks(256)


class Biases(mt.Model):
    def __init__(self) -> None:
        super().__init__()
        self.embedding_feature("user_id", slot=1)
        self.bias = self.embedding_slice("user_id", "bias", 2, out="add_n")

    def forward(self, batch: Any) -> mt.Output:
        return mt.Output(logits=self.bias(batch).sum(dim=1), label=batch.label[:, 0])


@pytest.fixture
def target() -> Iterator[PushTargetServer]:
    made = PushTargetServer(Security(token="secret"))
    yield made
    made.stop()


def test_a_run_ends_when_its_target_has_all_rows(tmp_path: Path, target: PushTargetServer) -> None:
    torch.set_num_threads(1)
    (tmp_path / "token").write_text("secret\n")
    config = mt.RunConfig(
        model_dir=tmp_path / "run",
        publish_interval_s=0.01,
        sync_targets=[target.address],
        sync_token_file=tmp_path / "token",
        log_step_count_steps=0,
        save_summary_steps=0,
        threads=1,
    )
    assert config.publish.publish_dir == str(tmp_path / "run" / "published")
    made = mt.Estimator(Biases, config)
    made.train(CLICKS.dataset().batch(32))
    tables: Any = made.store
    rows = {
        (name, int(fid)): row.tolist()
        for name in tables
        for ids, lot in tables[name].items()
        for fid, row in zip(ids, lot, strict=True)
    }
    assert rows
    assert target.rows == rows


def test_its_numbers_are_on_the_page_of_the_run() -> None:
    push = PushHook("published", PushConfig(sync_targets=("a:1",)))
    page = PrometheusHook(RunMetrics())
    assert share_metrics_registry([push, PublishHook("published"), page])[0] is push
    assert push.export == page.registry.export
    assert share_metrics_registry([PublishHook("published")])


def test_a_hook_without_targets_or_token_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sync_targets is empty"):
        PushHook(tmp_path, PushConfig())
    config = mt.RunConfig(
        sync_targets=["a:1"], publish_dir=tmp_path, sync_token_file=tmp_path / "absent", log_step_count_steps=0
    )
    with pytest.raises(ConfigError, match=r"sync_token_file is '.*absent', which cannot be read"):
        mt.Estimator(Biases, config).train(CLICKS.dataset().batch(32))
