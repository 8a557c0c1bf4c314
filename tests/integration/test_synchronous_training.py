"""Ranks that step together, as real processes that meet on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import synchronous_child as part
import training_child as child
from fork_server import fork_context
from monolith.artifacts import CheckpointFolder
from monolith.artifacts.delta_log import read_cut
from monolith.core.clock import SystemClock
from monolith.core.free_ports import free_port
from monolith.embedding import MultiTable
from monolith.embedding.snapshot import read_manifest, spec_of
from monolith.ps import RemoteStore
from monolith.sync import Follower, read_base
from monolith.testing.fakes.published import FollowedTables
from monolith.testing.processes.ps_servers import PsServers
from monolith.training import Estimator
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.runner import Job

LIMIT_S = 240.0
TASK = f"{child.__file__}:Ranker"


def start_ranks(size: int, action: Callable[..., Any], *args: Any) -> tuple[list[Any], list[Any]]:
    port = free_port()
    context = fork_context()
    processes, pipes = [], []
    for rank in range(size):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=part.be_rank, args=(rank, size, port, theirs, action, args))
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(ours)
    return processes, pipes


def answers(processes: list[Any], pipes: list[Any]) -> list[tuple[bool, Any] | None]:
    """What every rank returned or raised; None of one that was killed."""
    found: list[Any] = []
    try:
        for rank, pipe in enumerate(pipes):
            assert wait([pipe], LIMIT_S), f"rank {rank} says nothing"
            try:
                found.append(pipe.recv())
            except EOFError:
                found.append(None)
    finally:
        for process in processes:
            process.join(5 if len(found) == len(pipes) else 0)
            if process.is_alive():
                process.kill()
                process.join()
    return found


def ranks(size: int, action: Callable[..., Any], *args: Any) -> list[Any]:
    """Have each rank do its part; return what each returned."""
    found = answers(*start_ranks(size, action, *args))
    assert all(one is not None and one[0] for one in found), found
    return [one[1] for one in found if one is not None]


def connected(size: int, action: Callable[..., Any], *args: Any) -> list[Any]:
    return ranks(size, part.with_ranks, action, *args)


def settings(pattern: str, model_dir: Path, **values: Any) -> ClusterJobConfig:
    fixed = {"task": TASK, "data": pattern, "batch_size": 40, "deterministic": True, "threads": 1, "shuffle_buffer": 50,
             "log_step_count_steps": 0, "save_summary_steps": 0, "enable_sync_training": True}  # fmt: skip
    return ClusterJobConfig(model_dir=str(model_dir), **{**fixed, **values})


def trained(model_dir: Path) -> dict[str, Any]:
    """All that a checkpoint holds, whoever wrote it."""
    made = child.estimator(model_dir)
    assert made.step
    found = child.fingerprint(made)
    return {key: found[key] for key in ("step", "weights", "optimizer", "tables", "data", "metrics", "random")}


def merged(parts: list[dict[str, dict[int, Any]]]) -> dict[str, dict[int, Any]]:
    """The rows of all ranks; no id is at two of them."""
    whole: dict[str, dict[int, Any]] = {}
    for one in parts:
        for name, rows in one.items():
            assert not whole.setdefault(name, {}).keys() & rows.keys()
            whole[name] |= rows
    return whole


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    return child.write_data(tmp_path_factory.mktemp("data"))


def test_a_step_of_several_ranks_is_the_step_of_one_process_with_their_batches_together() -> None:
    # Rank 1 has data for three of five steps, rank 2 for one: what is missing at the end counts for nothing.
    cuts = [(0, 14, 5), (14, 24, 3), (24, 30, 1)]
    data = part.shares(5, 30, cuts)
    rules = [{}, {"clip_norm": 0.4}, {"clip_type": "norm", "clip_norm": 0.2, "dense_weight_decay": 0.01}]
    whole = [part.batch_of(part.arrays(30, seed), 0, 30 if seed < 1 else 24 if seed < 3 else 14) for seed in range(5)]
    found = connected(3, part.train_plain, data, rules)
    for number, rule in enumerate(rules):
        local = Estimator(part.Plain, part.config_of(**rule))
        expected = local.train(whole)
        steps, weights, rows, metrics = zip(*(rank[number] for rank in found), strict=True)
        assert steps == (5, 5, 5)
        assert weights[0] == weights[1] == weights[2]
        assert metrics[0] == metrics[1] == metrics[2] == pytest.approx(expected, rel=1e-4)
        for name, value in local.model.state_dict().items():
            np.testing.assert_allclose(weights[0][name], value.numpy(), rtol=1e-3, atol=1e-5, err_msg=name)
        for name, saved in part.rows_of(local.store).items():
            own = merged(list(rows))[name]
            assert own.keys() == saved.keys()
            for fid, (values, time_s) in saved.items():
                np.testing.assert_allclose(own[fid][0], values, rtol=1e-3, atol=1e-5)
                assert own[fid][1] == time_s


@pytest.mark.parametrize(
    "options", [{}, {"embedding_prefetch_capacity": 2, "enable_embedding_postpush": True, "save_checkpoints_steps": 5}]
)
def test_one_rank_gives_the_same_bytes_as_local_training(options: dict[str, Any], tmp_path: Path, pattern: str) -> None:
    Job(settings(pattern, tmp_path / "local", max_steps=12, enable_sync_training=False, **options)).train()
    ranks(1, part.run_job, settings(pattern, tmp_path / "rank", max_steps=12, **options))
    assert trained(tmp_path / "rank") == trained(tmp_path / "local")


def test_rows_are_at_the_rank_of_their_shard_and_equal_gradients_of_all_ranks(tmp_path: Path) -> None:
    found = connected(3, part.push_and_pull, 7, tmp_path / "tables")
    expected = MultiTable(part.SPECS)
    for step, said in enumerate(part.random_pushes(3, 5, 7)):
        sums: dict[str, dict[int, Any]] = {"a": {}, "b": {}}
        for ids, grads in said:
            for name, keys in ids.items():
                for fid, grad in zip(keys.tolist(), grads[name], strict=True):
                    sums[name][fid] = sums[name].get(fid, 0) + grad
        expected.push(
            {name: np.array(list(rows), np.int64) for name, rows in sums.items()},
            {name: np.array(list(rows.values()), np.float32) for name, rows in sums.items()},
            time_s=20 + step,
            step=step,
        )
    for rank, (pulled, rows, own) in enumerate(found):
        assert pulled["a"] == expected.pull({"a": np.arange(-10, 10)})["a"].tolist()
        assert pulled["b"] == expected.pull({"b": np.arange(-10, 10)[rank:]})["b"].tolist()
        assert rows == {name: len(expected[name]) for name in expected}
        assert all(np.uint64(np.int64(fid)) % np.uint64(3) == rank for ids in own.values() for fid in ids)
    saved = MultiTable(part.SPECS)
    saved.restore(tmp_path / "tables")
    assert part.rows_of(saved) == part.rows_of(expected)


def test_ranks_connect_again_at_the_same_address_although_rank_0_closes_late() -> None:
    assert ranks(3, part.connect_twice) == [[6, 6]] * 3


def test_a_rank_that_meets_a_closing_store_tries_again() -> None:
    assert ranks(2, part.connect_while_a_store_closes) == [3, 3]


def test_a_training_goes_on_exactly_and_moves_to_servers_to_other_ranks_and_to_one_process(
    tmp_path: Path, pattern: str
) -> None:
    straight, halved = tmp_path / "straight", tmp_path / "halved"
    ranks(2, part.run_job, settings(pattern, straight, max_steps=8))
    ranks(2, part.run_jobs, settings(pattern, halved, max_steps=4), settings(pattern, halved, max_steps=8))
    assert trained(halved) == trained(straight)

    newest = CheckpointFolder(straight / "checkpoints").newest()
    assert newest is not None
    tables = newest.path / "tables"
    specs = [spec_of(saved) for saved in read_manifest(tables)]
    assert {len(saved.shards) for saved in read_manifest(tables)} == {2}
    with PsServers(3) as servers, RemoteStore(servers.addresses, specs) as store:
        store.restore(tables)
        store.snapshot(tmp_path / "servers")
    counts = connected(2, part.restore_and_save, specs, tmp_path / "servers", tmp_path / "back")
    assert all(count for own in counts for count in own)
    local = MultiTable(specs)
    local.restore(tmp_path / "back")
    local.snapshot(tmp_path / "local")
    connected(3, part.restore_and_save, specs, tmp_path / "local", tmp_path / "three")
    digests = []
    for folder in (tables, tmp_path / "servers", tmp_path / "back", tmp_path / "local", tmp_path / "three"):
        store_of = MultiTable(specs)
        store_of.restore(folder)
        digests.append({name: child.table_digest(store_of[name]) for name in store_of})
    assert digests[1:] == digests[:1] * 4

    other = settings(pattern, straight, max_steps=9)
    refused = answers(*start_ranks(3, part.run_job, other))
    assert all(one is not None and one[1][0] == "DataError" and "saved by 2 ranks" in one[1][1] for one in refused)
    more = settings(pattern, straight, max_steps=9, resume_data=False)
    ranks(3, part.run_job, more)
    assert trained(straight)["step"] == 9


def test_a_snapshot_that_is_not_there_is_refused_by_all_ranks(tmp_path: Path) -> None:
    found = answers(*start_ranks(2, part.with_ranks, part.refuse_a_snapshot, tmp_path / "nothing"))
    assert all(one is not None and one[1][0] == "SnapshotCorrupt" for one in found)


@pytest.mark.parametrize(("how", "timeout_s"), [("killed", 120.0), ("faulty", 120.0), ("stopped", 5.0)])
def test_a_rank_that_is_lost_ends_the_others_with_one_error(how: str, timeout_s: float) -> None:
    processes, pipes = start_ranks(3, part.lose_rank_1, how, timeout_s)
    found = answers([processes[0], processes[2]], [pipes[0], pipes[2]])
    for one, rank in zip(found, (0, 2), strict=True):
        assert one is not None
        is_good, (kind, text) = one
        assert not is_good
        assert kind == "PeersLost"
        assert text.startswith(f"rank {rank} of 3 lost the others while ")
    if processes[1].is_alive():
        os.kill(processes[1].pid, signal.SIGKILL)
    processes[1].join()


def test_data_that_one_rank_cannot_read_ends_all_at_the_same_batch() -> None:
    found = answers(*start_ranks(2, part.with_ranks, part.read_a_fault))
    assert found[1] == (False, ("DataError", "the fourth batch is broken"))
    assert found[0] == (False, ("ClusterError", "rank 1 cannot read its data; see the log of that rank"))


def test_a_loss_that_is_not_finite_at_one_rank_is_applied_by_none() -> None:
    found = answers(*start_ranks(2, part.with_ranks, part.diverge))
    kinds = [None if one is None else one[1][0] for one in found]
    assert kinds == ["TrainingDiverged", "TrainingDiverged"]
    assert found[1] is not None
    assert "click = nan" in found[1][1][1]


def test_what_one_rank_is_asked_for_all_ranks_do(tmp_path: Path) -> None:
    assert connected(2, part.ask_rank_1_to_stop, tmp_path / "stop") == [4, 4]
    assert CheckpointFolder(tmp_path / "stop" / "checkpoints").newest() is not None
    (step, seen), (other_step, _) = connected(2, part.save_and_pause, tmp_path / "steer")
    assert seen["saved"] == f"step-{seen['step']:09d}"
    assert step == other_step == seen["step"]


def test_a_checkpoint_that_one_rank_cannot_write_is_none_and_the_one_before_stays(tmp_path: Path) -> None:
    found = answers(*start_ranks(2, part.with_ranks, part.spoil_rank_1, tmp_path))
    for one in found:
        assert one is not None
        assert one[1][0] == "ArtifactError"
        assert "rank 1: the disk of rank 1 is full" in one[1][1]
    saved = CheckpointFolder(tmp_path / "checkpoints").saved()
    assert [one.step for one in saved] == [2]
    assert trained_tables(saved[0].path) == {2}


def trained_tables(path: Path) -> set[int]:
    return {len(saved.shards) for saved in read_manifest(path / "tables")}


def test_the_launcher_starts_ranks_and_prints_what_they_learnt_together(tmp_path: Path, pattern: str) -> None:
    program = [sys.executable, "-m", "monolith"]
    arguments = ["--task", TASK, "--data", pattern, "--batch-size", "40", "--threads", "1", "--max-steps", "3"]
    done = subprocess.run(
        [*program, "launch", "torchrun", "--nproc", "2", "--", "train", *arguments, "--model-dir", "run", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("click/auc") == 1, "only rank 0 prints"
    newest = CheckpointFolder(tmp_path / "run" / "checkpoints").newest()
    assert newest is not None
    assert newest.step == 3
    assert trained_tables(newest.path) == {2}


def served_rows(tables: MultiTable) -> dict[str, dict[int, bytes]]:
    return {
        name: {
            int(fid): row.tobytes() for ids, rows in tables[name].items() for fid, row in zip(ids, rows, strict=True)
        }
        for name in tables
    }


def test_ranks_publish_cuts_of_all_ranks_that_a_follower_takes_over(tmp_path: Path, pattern: str) -> None:
    run, published = tmp_path / "run", tmp_path / "published"
    options: dict[str, Any] = {"publish_dir": published, "publish_interval_s": 0.001, "save_checkpoints_steps": 3}
    replica = FollowedTables(MultiTable(child.Ranker().declaration.table_specs()).to_serving())
    follower = Follower(published, replica, clock=SystemClock())
    for max_steps in (5, 9):  # the second run resumes from the checkpoint of the first
        ranks(2, part.run_job, settings(pattern, run, max_steps=max_steps, **options))
        assert follower.step()
        newest = CheckpointFolder(run / "checkpoints").newest()
        assert newest is not None
        assert newest.step == max_steps
        assert served_rows(replica.tables) == served_rows(MultiTable.load_serving(newest.path / "tables"))
        made = child.estimator(run)
        made.load()
        for name, weight in made.model.state_dict().items():
            assert np.array_equal(replica.weights[name], weight.numpy()), name
    cut = read_cut(published)
    assert cut is not None
    assert set(cut.sequences) == {0, 1}
    assert cut.number >= 9
    base = read_base(published)
    assert base is not None
    assert set(base.positions) == {0, 1}
    assert all(position.sequence > 1 for position in base.positions.values())
    fresh = FollowedTables(MultiTable(child.Ranker().declaration.table_specs()).to_serving())
    assert Follower(published, fresh, clock=SystemClock()).step()
    assert served_rows(fresh.tables) == served_rows(replica.tables)
