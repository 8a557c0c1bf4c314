"""``export_when_saving``: a job writes an export with each checkpoint, whichever processes hold its rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import monolith as mt
from commands import Shell
from monolith.artifacts.checkpoint_folder import CheckpointFolder
from monolith.artifacts.export_folder import ExportFolder
from monolith.core.free_ports import free_port
from monolith.demo.world import World
from monolith.demo.world.files import write_parquet
from monolith.features import Declaration
from monolith.serving.servable.servable import Servable
from monolith.testing.processes.local_cluster import LocalCluster

CLICKS = World(users=40, items=30, seed=4).clicks(600)
FEATURES = "{sparse: [user_id, item_id, category], dense: [price], dim: 4, hidden: [8]}"
TRAIN = [
    "train", "--task", "deepfm", "--task-options", FEATURES, "--data", "clicks.parquet", "--label-features", "click",
    "--batch-size", 50, "--epochs", 0, "--model-dir", "run", "--save-checkpoints-steps", 4, "--threads", 1,
]  # fmt: skip


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    write_parquet(CLICKS, tmp_path / "clicks.parquet")
    return Shell(tmp_path)


def check_exports(shell: Shell, steps: int) -> None:
    """Each checkpoint has an export. The newest has the step, rows and scores of the last checkpoint, in fp16."""
    run = shell.folder / "run"
    saved = [checkpoint.step for checkpoint in CheckpointFolder(run / "checkpoints").saved()]
    versions = ExportFolder(run / "exported_models").versions()
    assert saved == [4, steps]
    assert len(versions) == 2
    newest = Servable.load(run / "exported_models" / str(max(versions)))
    assert newest.manifest.global_step == steps
    assert sum(table.rows for table in newest.manifest.tables) > 70
    lines = shell.run("predict", "--model-dir", "run", "--data", "clicks.parquet").splitlines()
    declaration = Declaration.from_json(json.dumps(newest.manifest.declaration))
    schema = declaration.schema(label_features=("click",))
    (batch,) = mt.data.parquet(str(shell.folder / "clicks.parquet"), schema=schema).batch(len(CLICKS))
    wanted = np.array([json.loads(line)["ctr"] for line in lines])
    assert np.abs(newest.predict_batch(batch)["ctr"] - wanted).max() < 2e-3


def test_one_process_exports_with_each_checkpoint(shell: Shell) -> None:
    shell.run(*TRAIN, "--max-steps", 8, "--export-when-saving")
    check_exports(shell, 8)


def test_a_file_turns_exports_on_and_names_folder_and_model(shell: Shell) -> None:
    (shell.folder / "job.yaml").write_text(
        "serving: {export_when_saving: true, export_dir_base: served, model_name: clicks}"
    )
    shell.run(*TRAIN, "--max-steps", 4, "--config", "job.yaml")
    (version,) = ExportFolder(shell.folder / "run" / "served").versions()
    servable = Servable.load(shell.folder / "run" / "served" / str(version))
    assert (servable.name, servable.manifest.global_step) == ("clicks", 4)


def test_a_job_without_a_folder_is_refused(shell: Shell) -> None:
    error = shell.fail(*TRAIN, "--model-dir", "", "--export-when-saving")
    assert "model_dir" in error


def test_the_chief_of_parameter_servers_exports_with_each_checkpoint(shell: Shell) -> None:
    command = [*TRAIN, "--max-steps", 8, "--export-when-saving"]
    with LocalCluster(command, num_ps=2, num_workers=1, folder=shell.folder) as cluster:
        assert cluster.wait() is None
    check_exports(shell, 8)


def test_rank_0_exports_with_each_checkpoint(shell: Shell) -> None:
    address = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    options = ["--enable-sync-training", "--max-steps", 8, "--export-when-saving"]
    ranks = [
        shell.start(*TRAIN, *options, env={**address, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)
    ]
    for rank in ranks:
        assert rank.end() == 0, rank.err.read_text()
    check_exports(shell, 8)
