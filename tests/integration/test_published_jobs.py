"""Two servers and two workers as processes publish, and are killed: every cut is one moment of all of them."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import pairing_model
from job_processes import JobProcesses
from monolith.artifacts import CheckpointFolder
from monolith.artifacts.export_tensors import read_tensors
from monolith.core.clock import SystemClock
from monolith.embedding import MultiTable
from monolith.embedding.specs import JOB_TABLES
from monolith.sync import Follower, read_base
from monolith.testing.fakes.published import FollowedTables

LIMIT_S = 120.0
WORKERS = 2


class Watched(FollowedTables):
    """A follower's model that keeps what it shows at every cut."""

    def __init__(self, published: Path) -> None:
        super().__init__(MultiTable(pairing_model.Pairs().declaration.table_specs()).to_serving())
        self.follower = Follower(published, self, clock=SystemClock())

    @property
    def halves(self) -> NDArray[np.float32]:
        """By record: how often only one of its two rows was changed."""
        users, items = pairing_model.counted(self.tables)
        return users - items

    @property
    def unfinished(self) -> float:
        """Steps whose rows are there and whose change of the weight is not."""
        users, items = pairing_model.counted(self.tables)
        rows = float(np.maximum(users, items).sum()) / pairing_model.BATCH
        return rows - pairing_model.steps_of(self.weights)

    def see(self, cuts: int, check: Callable[[], None], logs: Callable[[], str]) -> None:
        """Follow so many cuts, and look at each."""
        waiting = threading.Event()
        seen = 0
        for _ in range(int(LIMIT_S / 0.01)):
            if self.follower.try_step():
                check()
                seen += 1
                if seen == cuts:
                    return
            waiting.wait(0.01)
        raise AssertionError(f"only {seen} cuts of {cuts}; {self.follower.status.error}\n{logs()}")


def options(folder: Path) -> list[object]:
    return [
        "--task", f"{pairing_model.__file__}:Pairs", "--data", pairing_model.write_files(folder), "--epochs", 0,
        "--batch-size", pairing_model.BATCH, "--threads", 1, "--model-dir", folder / "run", "--dense-optimizer", "sgd",
        "--dense-learning-rate", 1.0, "--save-summary-steps", 0, "--log-step-count-steps", 10,
        "--connect-retries", 600, "--retry-backoff-ms", 100, "--retry-wait-in-secs", 0.2,
        "--restore-sync-poll-interval-ms", 50, "--chief-timeout-secs", 30, "--discovery-type", "file",
        "--discovery-folder", folder / "cluster", "--save-checkpoints-steps", 100,
    ]  # fmt: skip


def test_each_cut_is_one_moment_of_all_servers_whoever_is_killed(tmp_path: Path) -> None:
    published = tmp_path / "published"
    chief = ["--publish-dir", published, "--publish-interval-s", 0.05]
    watched = Watched(published)
    with JobProcesses(tmp_path, options(tmp_path), num_ps=2, num_workers=WORKERS, worker_options=chief) as job:
        job.start_all()
        job.wait_for("chief", "step finished")
        job.wait_for("worker 1", "step finished")

        def check_whole() -> None:
            assert not watched.halves.any()
            assert 0 <= watched.unfinished <= WORKERS

        watched.see(10, check_whole, job.logs)

        job.kill("worker 1")  # perhaps in the middle of a push: then half of one batch is there for good
        halves: list[list[float]] = []

        def check_worker() -> None:
            assert np.abs(watched.halves).sum() <= pairing_model.BATCH
            halves.append(watched.halves.tolist())

        watched.see(5, check_worker, job.logs)
        assert all(one == halves[-1] for one in halves), "no later push is torn"
        job.start("worker 1")
        job.wait_for("worker 1", "first step is done", 2)
        watched.see(3, check_worker, job.logs)

        job.wait_for("chief", "checkpoint saved")  # before it, a server recovers from its log alone
        job.kill("ps 1")
        job.start("ps 1")
        job.wait_for("ps 1", "shard recovered")
        job.wait_for("chief", "parameter server restarted and recovered")
        watched.see(1, lambda: None, job.logs)  # what was under way when the server was lost
        lost: list[list[float]] = []
        watched.see(5, lambda: lost.append(watched.halves.tolist()), job.logs)
        assert all(one == lost[0] for one in lost), "no later push is torn"

        job.signal("chief", signal.SIGTERM)
        assert [job.end(name) for name in ("chief", "worker 1", "ps 0", "ps 1")] == [0, 0, 0, 0], job.logs()
        assert not re.search("publish failed", job.said("chief")), job.said("chief")
    watched.follower.step()
    _is_what_was_saved(tmp_path / "run", watched)
    late = Watched(published)
    late.follower.step()
    _is_what_was_saved(tmp_path / "run", late)
    base = read_base(published)
    assert base is not None


def _is_what_was_saved(run: Path, shown: Watched) -> None:
    newest = CheckpointFolder(run / "checkpoints").newest()
    assert newest is not None
    saved = MultiTable.load(newest.path / "tables", without=JOB_TABLES)
    for one, other in zip(pairing_model.counted(saved), pairing_model.counted(shown.tables), strict=True):
        np.testing.assert_array_equal(one, other)
    dense = read_tensors(newest.path / "dense.safetensors")
    assert dense.keys() == shown.weights.keys()
    np.testing.assert_array_equal(dense["steps"], shown.weights["steps"])
