"""Workers with tables on servers that take every step together: the same weights at all, whoever is lost on the way."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

import counting_model
import training_child as child

import monolith as mt
from monolith.artifacts import CheckpointFolder
from monolith.embedding import Sgd, Zeros
from monolith.ps import Security
from monolith.testing.local_cluster import LocalCluster
from monolith.testing.ps_servers import PsServers
from monolith.training.control.client import ControllerClient
from monolith.training.distributed.job_config import ClusterJobConfig
from monolith.training.distributed.stop_event import StopEventHook
from monolith.training.distributed.worker_role import TrainedWorker
from monolith.training.hooks import Hook

COUNTER = f"{counting_model.__file__}:Counter"
SMOOTH = f"{__file__}:Smooth"


class Smooth(mt.Model):
    """Learns weights by a loss of every record for itself; each record has a row of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_feature("user_id", slot=1)
        self.row = self.embedding_slice("user_id", "row", 3, optimizer=Sgd(0.1), initializer=Zeros())
        self.hidden = nn.Linear(3, 4)
        self.last = nn.Linear(4, 1)

    def forward(self, batch: Any) -> mt.Output:
        return mt.Output(
            head="click", logits=self.last(torch.tanh(self.hidden(self.row(batch))))[:, 0], label=batch.label[:, 0]
        )


def settings(pattern: str, model_dir: Path, **values: Any) -> ClusterJobConfig:
    fixed = {"task": COUNTER, "data": pattern, "batch_size": 7, "threads": 1, "log_step_count_steps": 0,
             "save_summary_steps": 0, "num_ps": 2, "num_workers": 2, "enable_partial_sync_training": True,
             "restore_sync_poll_interval_ms": 20, "session_creation_timeout_secs": 60}  # fmt: skip
    return ClusterJobConfig(model_dir=str(model_dir), **{**fixed, **values})


class Weights(Hook):
    """Keeps a digest of the dense weights after every step."""

    def __init__(self) -> None:
        self.digests: dict[int, str] = {}

    def after_step(self, run: Any, result: Any) -> None:
        content = b"".join(weight.detach().numpy().tobytes() for weight in run.model.parameters())
        self.digests[run.step] = hashlib.sha256(content).hexdigest()


def run_job(config: ClusterJobConfig, hooks: dict[int, list[Hook]]) -> list[TrainedWorker]:
    """Run all workers of a job, each in a thread of its own."""
    with PsServers(config.num_ps) as servers, ThreadPoolExecutor(config.num_workers) as pool:
        workers = [
            TrainedWorker(servers.addresses, replace(config, index=index), Security(), hooks=hooks.get(index, []))
            for index in range(config.num_workers)
        ]
        for done in [pool.submit(worker.train) for worker in workers]:
            done.result(120)
    return workers


def newest_step(model_dir: Path) -> int:
    newest = CheckpointFolder(model_dir / "checkpoints").newest()
    assert newest is not None
    return newest.step


@pytest.mark.parametrize("options", [{}, {"embedding_prefetch_capacity": 2, "enable_embedding_postpush": True}])
def test_workers_have_the_same_weights_after_each_step_to_the_end_of_unequal_data(
    options: dict[str, Any], tmp_path: Path
) -> None:
    pattern = child.write_data(tmp_path)
    config = settings(
        pattern, tmp_path / "run", task=f"{child.__file__}:Ranker", batch_size=40, num_workers=3, **options
    )
    seen = {index: Weights() for index in range(3)}
    run_job(config, {index: [hook] for index, hook in seen.items()})
    assert seen[0].digests == seen[1].digests == seen[2].digests
    assert len(set(seen[0].digests.values())) == len(seen[0].digests) == newest_step(tmp_path / "run")


def test_every_record_counts_once_also_where_one_worker_has_no_data(tmp_path: Path) -> None:
    rows = [50, 20, 33]
    config = settings(counting_model.write_files(tmp_path, rows), tmp_path / "run", num_workers=4)
    run_job(config, {})
    assert (counting_model.counts(tmp_path / "run", sum(rows)) == 1).all()
    assert newest_step(tmp_path / "run") == 8, "the batches of the longest part"
