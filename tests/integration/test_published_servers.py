"""A job on parameter servers publishes from their delta logs; a follower shows what the job has saved."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import training_child as child
from monolith.artifacts import CheckpointFolder
from monolith.artifacts.delta_log import read_cut
from monolith.artifacts.export_tensors import read_tensors
from monolith.core.clock import SystemClock
from monolith.core.errors import ConfigError
from monolith.embedding import MultiTable
from monolith.ps import Security, ServerConfig
from monolith.sync import Follower, read_base
from monolith.sync.base_snapshot import BaseSnapshot, write_base
from monolith.testing.fakes.published import FollowedTables
from monolith.testing.processes.ps_servers import PsServers
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.cluster.model_folder import newest_tables
from monolith.training.cluster.worker_job import connect
from monolith.training.hooks import Hook


def job(folder: Path, **values: Any) -> ClusterJobConfig:
    data = folder / "data"
    data.mkdir(exist_ok=True)
    fixed = {"task": f"{child.__file__}:Ranker", "data": child.write_data(data), "batch_size": 40, "threads": 1,
             "log_step_count_steps": 0, "save_summary_steps": 0, "num_ps": 2, "publish_interval_s": 0.02,
             "publish_dir": str(folder / "published"), "model_dir": str(folder / "run")}  # fmt: skip
    return ClusterJobConfig(**{**fixed, **values})


def rows(tables: MultiTable) -> dict[str, dict[int, list[float]]]:
    return {
        name: {int(fid): row.tolist() for ids, lot in tables[name].items() for fid, row in zip(ids, lot, strict=True)}
        for name in tables
    }


def test_a_follower_shows_what_the_job_has_saved(tmp_path: Path) -> None:
    run, published = tmp_path / "run", tmp_path / "published"
    model = FollowedTables(MultiTable(child.Ranker().declaration.table_specs()).to_serving())
    follower = Follower(published, model, clock=SystemClock())
    cuts: list[int] = []

    class Follow(Hook):
        def after_step(self, run: Any, step: Any) -> None:
            if follower.step():
                cut = follower.status.applied
                assert cut is not None
                cuts.append(cut.number)

    with PsServers(2, ServerConfig(delta_log=run / "delta_log", delta_interval_s=0.05)) as servers:
        config = job(tmp_path, save_checkpoints_steps=9)
        connect(servers.addresses, config, Security(), hooks=[Follow()]).train()
        follower.step()
        newest = CheckpointFolder(run / "checkpoints").newest()
        assert newest is not None
        saved = rows(MultiTable.load(newest.path / "tables").to_serving())
        dense = read_tensors(newest.path / "dense.safetensors")
        late = FollowedTables(model.tables.emptied())
        assert Follower(published, late, clock=SystemClock()).step()
        for one in (model, late):
            assert rows(one.tables) == saved
            assert one.weights.keys() == dense.keys()
            for name, value in dense.items():
                np.testing.assert_array_equal(one.weights[name], value)
    cut, base = read_cut(published), read_base(published)
    assert cut is not None
    assert base is not None
    assert cut.folders == ("../run/delta_log/ps_0", "../run/delta_log/ps_1")
    assert base.tables == newest_tables(run)
    assert len(cuts) > 1


def test_a_base_that_was_not_published_keeps_the_segments_that_followers_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, published = tmp_path / "run", tmp_path / "published"
    tried: list[Path] = []

    def write(root: Path, base: BaseSnapshot) -> None:
        tried.append(base.tables)
        if len(tried) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_base(root, base)

    monkeypatch.setattr("monolith.sync.publisher.write_base", write)
    with PsServers(2, ServerConfig(delta_log=run / "delta_log", delta_interval_s=0.05)) as servers:
        config = job(tmp_path, save_checkpoints_steps=9)
        connect(servers.addresses, config, Security()).train()
    assert len(tried) > 1
    base = read_base(published)
    assert base is not None
    assert base.tables == tried[0]
    newest = newest_tables(run)
    assert newest == tried[-1]
    late = FollowedTables(MultiTable(child.Ranker().declaration.table_specs()).to_serving())
    assert Follower(published, late, clock=SystemClock()).step()
    assert rows(late.tables) == rows(MultiTable.load(newest).to_serving())


def test_a_job_without_a_folder_is_told_that_it_cannot_publish(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model_dir is empty"):
        connect(["127.0.0.1:1"], job(tmp_path, model_dir=""), Security())
