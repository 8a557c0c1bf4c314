"""Workers that take files from one list: every record once, and at least once when one of them is killed."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import counting_model
from monolith.core.clock import Deadline, SystemClock
from monolith.ps import Security
from monolith.testing.eventually import eventually
from monolith.testing.processes.local_cluster import LocalCluster
from monolith.testing.processes.ps_servers import PsServers
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.cluster.worker_job import connect
from monolith.training.hooks import Hook

TASK = f"{counting_model.__file__}:Counter"


def settings(pattern: str, model_dir: Path, **values: Any) -> ClusterJobConfig:
    fixed = {"task": TASK, "data": pattern, "batch_size": 7, "threads": 1, "log_step_count_steps": 0,
             "save_summary_steps": 0, "num_ps": 1, "num_workers": 2, "enable_dynamic_sharding": True,
             "restore_sync_poll_interval_ms": 20}  # fmt: skip
    return ClusterJobConfig(model_dir=str(model_dir), **{**fixed, **values})


class Wait(Hook):
    """Makes a worker so slow that the other has to do its share."""

    def __init__(self, until: threading.Event) -> None:
        self._until = until

    def after_step(self, run: Any, result: Any) -> None:
        assert self._until.wait(60)


class CountSteps(Hook):
    def __init__(self, enough: int, reached: threading.Event) -> None:
        self.steps = 0
        self._enough = enough
        self._reached = reached

    def after_step(self, run: Any, result: Any) -> None:
        self.steps += 1
        if self.steps >= self._enough:
            self._reached.set()


def run_job(config: ClusterJobConfig, hooks: dict[int, list[Hook]]) -> None:
    """Run all workers of a job, each in a thread of its own."""
    with PsServers(1) as servers, ThreadPoolExecutor(config.run.runtime.num_workers) as pool:
        workers = [
            connect(servers.addresses, replace(config, index=index), Security(), hooks=hooks.get(index, []))
            for index in range(config.run.runtime.num_workers)
        ]
        for done in [pool.submit(worker.train) for worker in workers]:
            done.result(120)


@pytest.mark.parametrize("slow", [0, 1], ids=["slow chief", "slow worker"])
def test_a_fast_worker_takes_the_files_of_a_slow_one_and_every_record_counts_once(slow: int, tmp_path: Path) -> None:
    rows = [40, 33, 50, 21, 45, 38]
    enough = threading.Event()
    fast = CountSteps(20, enough)
    config = settings(counting_model.write_files(tmp_path, rows), tmp_path / "run")
    run_job(config, {slow: [Wait(enough)], 1 - slow: [fast]})
    assert (counting_model.counts(tmp_path / "run", sum(rows)) == 1).all()
    assert fast.steps > 20, "it had far more than its half of the files"


def test_a_worker_that_finds_everything_taken_ends_well(tmp_path: Path) -> None:
    config = settings(counting_model.write_files(tmp_path, [30]), tmp_path / "run", num_workers=3)
    run_job(config, {})
    assert (counting_model.counts(tmp_path / "run", 30) == 1).all()


def test_a_job_that_is_stopped_goes_on_with_the_files_that_are_left(tmp_path: Path) -> None:
    rows = [40, 33, 50, 21, 45, 38, 60, 44]
    pattern = counting_model.write_files(tmp_path, rows)
    run_job(settings(pattern, tmp_path / "run", max_steps=20), {})
    seen = counting_model.counts(tmp_path / "run", sum(rows))
    assert 0 < seen.sum() < sum(rows)
    run_job(settings(pattern, tmp_path / "run", num_workers=3), {})  # of whatever number
    seen = counting_model.counts(tmp_path / "run", sum(rows))
    assert seen.min() >= 1
    assert seen.sum() < 1.5 * sum(rows), "it did not start at the beginning"
    run_job(settings(pattern, tmp_path / "run"), {})
    assert counting_model.counts(tmp_path / "run", sum(rows)).min() >= 2, "after the end, another pass"


def test_the_files_of_a_killed_worker_are_read_by_the_others(tmp_path: Path) -> None:
    rows = [150] * 6
    pattern = counting_model.write_files(tmp_path, rows)
    task = f"{counting_model.__file__}:LostOnTheWay"
    command = ["train", "--task", task, "--data", pattern, "--batch-size", 5, "--model-dir", tmp_path / "run",
               "--threads", 1, "--save-summary-steps", 0, "--log-step-count-steps", 50, "--enable-dynamic-sharding",
               "--restore-sync-poll-interval-ms", 50, "--chief-timeout-secs", 5]  # fmt: skip
    with LocalCluster(command, num_workers=2, folder=tmp_path) as cluster:
        deadline = Deadline(SystemClock(), 120)
        eventually(lambda: not (not (tmp_path / "on_the_way").exists() and not deadline.is_past))
        cluster.kill("worker 1")
        cluster.wait_for("chief", "worker lost, files reassigned")
        cluster.wait_for("chief", "checkpoint saved")  # the only one, at the end
    seen = counting_model.counts(tmp_path / "run", sum(rows))
    assert seen.min() >= 1, f"records that were lost: {np.flatnonzero(seen < 1)}"
    assert seen.sum() <= sum(rows) + 2 * 150, "no more than what it had in hand"
