"""Workers with tables on servers that take every step together: the same weights at all, whoever is lost on the way."""

from __future__ import annotations

import gc
import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import counting_model
import monolith as mt
import smooth_model
import training_child as child
from monolith.artifacts import CheckpointFolder
from monolith.core.errors import DataError
from monolith.core.registry import load_class
from monolith.demo.world import World
from monolith.demo.world.files import write_records
from monolith.ps import Security
from monolith.testing.eventually import eventually
from monolith.testing.processes.local_cluster import LocalCluster
from monolith.testing.processes.ps_servers import PsServers
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.cluster.stop_event import StopEventHook
from monolith.training.cluster.worker_job import WorkerJob, connect
from monolith.training.control.client import ControllerClient
from monolith.training.hooks import Hook
from monolith.training.runner import Job

COUNTER = f"{counting_model.__file__}:Counter"
SMOOTH = f"{smooth_model.__file__}:Smooth"


def settings(pattern: str, model_dir: Path, **values: Any) -> ClusterJobConfig:
    fixed = {"task": COUNTER, "data": pattern, "batch_size": 7, "threads": 1, "log_step_count_steps": 0,
             "save_summary_steps": 0, "num_ps": 2, "num_workers": 2, "enable_partial_sync_training": True,
             "restore_sync_poll_interval_ms": 20, "session_creation_timeout_secs": 60,
             "restore_sync_timeout_secs": 60, "chief_timeout_secs": 60}  # fmt: skip
    return ClusterJobConfig(model_dir=str(model_dir), **{**fixed, **values})


class Weights(Hook):
    """Keeps a digest of the dense weights after every step."""

    def __init__(self) -> None:
        self.digests: dict[int, str] = {}

    def after_step(self, run: Any, result: Any) -> None:
        content = b"".join(weight.detach().numpy().tobytes() for weight in run.model.parameters())
        self.digests[run.step] = hashlib.sha256(content).hexdigest()


def run_job(config: ClusterJobConfig, hooks: dict[int, list[Hook]]) -> list[WorkerJob]:
    """Run all workers of a job, each in a thread of its own."""
    load_class(config.model.task or "")  # before several threads do
    with PsServers(config.cluster.num_ps) as servers, ThreadPoolExecutor(config.run.runtime.num_workers) as pool:
        workers = [
            connect(servers.addresses, replace(config, index=index), Security(), hooks=hooks.get(index, []))
            for index in range(config.run.runtime.num_workers)
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


def test_every_record_counts_once_however_unequal_the_parts_are(tmp_path: Path) -> None:
    rows = [50, 1, 33]
    config = settings(counting_model.write_files(tmp_path, rows), tmp_path / "run", num_workers=3)
    workers = run_job(config, {})
    gc.collect()
    kept = [each for each in gc.get_objects() if type(each) is mt.data.Batch]
    assert not kept, "batches that live as long as the process are told of as leaks when it ends"
    assert len(workers) == 3
    assert (counting_model.counts(tmp_path / "run", sum(rows)) == 1).all()
    assert newest_step(tmp_path / "run") == 8, "the batches of the longest part"


def weights(model_dir: Path) -> np.ndarray[Any, Any]:
    estimator = mt.Estimator(smooth_model.Smooth, mt.RunConfig(model_dir=str(model_dir)))
    estimator.load()
    return np.concatenate([estimator.get_variable_value(name).ravel() for name in estimator.get_variable_names()])


@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_two_halves_of_a_batch_teach_what_the_whole_batch_does(clip_norm: float | None, tmp_path: Path) -> None:
    """Rows of one worker are none of the other's, so the tables play no tricks."""
    clicks = replace(World(users=5, items=5, seed=1).clicks(60), user_id=np.arange(60, dtype=np.int64))
    halves = [[], []]  # type: list[list[Any]]
    for batch in range(5):
        for half in range(2):
            begin = 12 * batch + 6 * half
            halves[half].append(clicks.rows(begin, begin + 6))
    for name, parts in (("half-0", halves[0]), ("half-1", halves[1]), ("whole", [clicks])):
        with mt.data.RecordWriter(tmp_path / f"{name}.pb") as writer:
            for part in parts:
                write_records(part, writer, batch_rows=6)
    fixed: dict[str, Any] = {"task": SMOOTH, "dense_optimizer": "sgd", "dense_learning_rate": 0.05,
                             "clip_norm": clip_norm, "shuffle_buffer": 0}  # fmt: skip
    run_job(settings(str(tmp_path / "half-*.pb"), tmp_path / "two", batch_size=6, **fixed), {})
    run_job(settings(str(tmp_path / "whole.pb"), tmp_path / "one", batch_size=12, num_workers=1, **fixed), {})
    assert newest_step(tmp_path / "two") == newest_step(tmp_path / "one") == 5
    first = np.concatenate([each.detach().numpy().ravel() for each in smooth_model.Smooth().parameters()])
    np.testing.assert_allclose(weights(tmp_path / "two"), weights(tmp_path / "one"), rtol=0, atol=1e-6)
    assert np.abs(weights(tmp_path / "two") - first).max() > 0.01


def test_one_worker_gives_the_same_bytes_as_local_tables(tmp_path: Path) -> None:
    pattern = child.write_data(tmp_path)
    fixed: dict[str, Any] = {"task": f"{child.__file__}:Ranker", "batch_size": 40, "deterministic": True,
                             "max_steps": 6, "num_workers": 1}  # fmt: skip
    run_job(settings(pattern, tmp_path / "remote", **fixed), {})
    Job(replace(settings(pattern, tmp_path / "local", **fixed), num_ps=0, enable_partial_sync_training=False)).train()
    found = [child.fingerprint(child.estimator(tmp_path / name)) for name in ("remote", "local")]
    assert found[0] == found[1]


def test_steps_of_all_workers_together_are_limited_and_a_later_run_goes_on(tmp_path: Path) -> None:
    rows = [40, 40]
    pattern = counting_model.write_files(tmp_path, rows)
    run_job(settings(pattern, tmp_path / "run", max_steps=3), {})
    assert newest_step(tmp_path / "run") == 3, "a step is one of all workers"
    assert counting_model.counts(tmp_path / "run", 80).sum() == 2 * 3 * 7
    run_job(settings(pattern, tmp_path / "run"), {})
    assert newest_step(tmp_path / "run") == 6
    assert (counting_model.counts(tmp_path / "run", 80) == 1).all()


def test_one_process_does_not_go_on_from_the_place_of_one_of_several_workers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pattern = counting_model.write_files(tmp_path, [40, 40])
    several = settings(pattern, tmp_path / "run", max_steps=3)
    run_job(several, {})
    caplog.clear()
    alone = replace(several, num_ps=0, num_workers=1, max_steps=5, enable_partial_sync_training=False)
    with pytest.raises(DataError, match=r"step 3 is of 2 workers, .* and this is one process\. .* resume_data=False"):
        Job(alone).train()
    assert "samples" in Job(replace(alone, max_steps=None)).evaluate()
    Job(replace(alone, resume_data=False)).train()
    Job(replace(alone, max_steps=7)).train()  # its own place now
    assert newest_step(tmp_path / "run") == 7
    assert "checkpoint tables not in the model" not in caplog.text


class StopAt(Hook):
    def __init__(self, step: int) -> None:
        self._step = step

    def after_step(self, run: Any, result: Any) -> None:
        if result.step == self._step:
            run.stop("enough")


def test_who_is_asked_to_stop_stops_all_after_the_next_step(tmp_path: Path) -> None:
    pattern = counting_model.write_files(tmp_path, [90, 90])
    seen = {index: Weights() for index in range(2)}
    run_job(settings(pattern, tmp_path / "run"), {0: [seen[0]], 1: [seen[1], StopAt(3)]})
    assert newest_step(tmp_path / "run") == 4
    assert seen[0].digests.keys() == seen[1].digests.keys() == {1, 2, 3, 4}


def test_a_loss_that_is_not_finite_at_one_worker_is_applied_by_none(tmp_path: Path) -> None:
    class Spoil(Hook):
        def before_step(self, run: Any) -> None:
            if run.step == 2:
                run.model.last.bias.data.fill_(float("nan"))

    config = settings(counting_model.write_files(tmp_path, [40, 40]), tmp_path / "run", task=SMOOTH)
    with PsServers(2) as servers, ThreadPoolExecutor(2) as pool:
        workers = [
            connect(servers.addresses, replace(config, index=index), Security(), hooks=hooks)
            for index, hooks in enumerate([[], [Spoil()]])
        ]
        chief, other = [pool.submit(worker.train) for worker in workers]
        assert "the loss of another worker is not finite" in str(chief.exception(120))
        assert "the loss is not finite (click = nan)" in str(other.exception(120))


class Reach(Hook):
    """Tells when a run has taken so many steps."""

    def __init__(self, steps: int) -> None:
        self.reached = threading.Event()
        self._steps = steps

    def after_step(self, run: Any, result: Any) -> None:
        if result.step >= self._steps:
            self.reached.set()


def test_the_controller_holds_all_workers_at_one_step_and_saves_meanwhile(tmp_path: Path) -> None:
    pattern = counting_model.write_files(tmp_path, [100, 100])
    config = settings(pattern, tmp_path / "run", epochs=0, controller_port=0)
    end, reached = threading.Event(), Reach(3)
    with PsServers(2) as servers, ThreadPoolExecutor(2) as pool:
        hooks: list[list[Hook]] = [[reached, StopEventHook(end, "the launcher ends the job")], []]
        workers = [
            pool.submit(connect(servers.addresses, replace(config, index=index), Security(), hooks=hooks[index]).train)
            for index in range(2)
        ]
        try:
            assert reached.reached.wait(120)
            with ControllerClient(tmp_path / "run") as client:
                for is_last in (False, True):
                    client.stop_training()
                    eventually(lambda: not client.block_status().unblocked)
                    held = client.worker_status()
                    assert [one.state for one in held] == ["held", "held"]
                    assert held[0].step == held[1].step
                    if is_last:
                        break  # and the end comes while they stand still
                    client.save_checkpoint()
                    assert client.worker_status() == held
                    client.resume_training()
                    paused_step = held[0].step
                    eventually(lambda step=paused_step: all(one.step > step for one in client.worker_status()))
        finally:
            end.set()
        for worker in workers:
            worker.result(120)
    saved = CheckpointFolder(tmp_path / "run" / "checkpoints").saved()
    assert [one.manifest.reason for one in saved] == ["controller", "at the end"]


def test_workers_that_are_killed_come_back_and_every_record_counts(tmp_path: Path) -> None:
    rows = [500, 400]
    pattern = counting_model.write_files(tmp_path, rows)
    command = ["train", "--task", COUNTER, "--data", pattern, "--batch-size", 5, "--model-dir", tmp_path / "run",
               "--threads", 1, "--save-summary-steps", 0, "--log-step-count-steps", 3,
               "--enable-partial-sync-training", "--restore-sync-poll-interval-ms", 50]  # fmt: skip
    with LocalCluster(command, num_workers=2, folder=tmp_path, max_restarts=1) as cluster:
        cluster.wait_for("worker 1", "step finished")
        cluster.kill("worker 1")
        cluster.wait_for("chief", "workers disconnected, reconnecting")
        cluster.wait_for("worker 1", "weights_of=0", 2)
        cluster.kill("chief")
        cluster.wait_for("worker 1", "workers disconnected, reconnecting")
        cluster.wait_for("chief", "weights_of=1")  # the chief takes those of the worker that has lost nothing
        assert cluster.wait() is None
    seen = counting_model.counts(tmp_path / "run", sum(rows))
    assert seen.min() >= 1, f"records that were lost: {np.flatnonzero(seen < 1)}"
    assert seen.max() <= 3, "again only what was read since the last place that was kept"


def test_a_worker_that_fails_for_good_ends_the_one_who_waits_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pattern = counting_model.write_files(tmp_path, [50, 50])
    command = ["train", "--task", f"{counting_model.__file__}:NeverThere", "--data", pattern, "--batch-size", 5,
               "--model-dir", tmp_path / "run", "--threads", 1, "--save-summary-steps", 0,
               "--enable-partial-sync-training", "--restore-sync-poll-interval-ms", 50]  # fmt: skip
    with LocalCluster(command, num_workers=2, folder=tmp_path, max_restarts=1) as cluster:
        cluster.wait_for("chief", "rendezvous started")
        (tmp_path / "fail").touch()
        ended = cluster.wait()
        assert cluster.starts("worker 1") == 2
    assert ended is not None
    assert ended.reason == "worker 1 ended with 1: error: this machine lacks what the model needs; install it"
    cluster.wait_for("chief", "rendezvous abandoned, worker stops missing=worker 1")
    assert newest_step(tmp_path / "run") == 0, "the chief has saved what there was"
    assert "process did not end" not in caplog.text
