"""Runs export by themselves: distributed layouts, dense-only exports after dense-only saves, shared tables."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import monolith as mt
from monolith.artifacts.checkpoint_folder import CheckpointFolder
from monolith.artifacts.export_folder import ExportFolder
from monolith.artifacts.export_manifest import read_export_manifest
from monolith.core.errors import ArtifactError, ConfigError
from monolith.export import exporter
from monolith.export.dense_part import DensePart
from monolith.serving import Servable
from monolith.sync import read_base
from monolith.training.checkpoints import files
from monolith.training.checkpoints.pending import BackgroundWriter
from monolith.training.config import RunnerConfig
from monolith.training.hooks import export as export_hook


class Clicker(mt.Model):
    def __init__(self) -> None:
        super().__init__()
        self.embedding_feature("user", slot=1)
        self.bias = self.embedding_slice("user", "bias", 1)

    def forward(self, batch: Any) -> mt.Output:
        return mt.Output(logits=self.bias(batch).squeeze(1), label=batch.label[:, 0])


@pytest.fixture(scope="module")
def part() -> DensePart:
    return DensePart(Clicker())


@pytest.fixture(autouse=True)
def _traced_once(part: DensePart, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracing takes seconds; the scores are not compared here."""
    monkeypatch.setattr(exporter, "DensePart", lambda model: part)


def batches(count: int) -> list[mt.data.Batch]:
    ids = np.arange(1, 41).reshape(-1, 1)
    return [mt.data.Batch.from_arrays(ids={"user": ids}, label=np.ones((40, 1))) for _ in range(count)]


def estimator(folder: Path, **options: Any) -> mt.Estimator:
    quiet: dict[str, Any] = {"log_step_count_steps": 0, "save_summary_steps": 0, "threads": 1}
    config = RunnerConfig(model_dir=folder, export_when_saving=True, **{**quiet, **options})
    return mt.Estimator(Clicker, config)


def test_a_run_writes_distributed_exports_and_dense_only_ones_between(tmp_path: Path) -> None:
    made = estimator(
        tmp_path,
        export_layout="distributed",
        export_shards=2,
        save_checkpoints_steps=4,
        dense_only_save_checkpoints_steps=2,
        background_save=False,
    )
    made.train(batches(9))
    exports = ExportFolder(tmp_path / "exported_models")
    assert exports.sub_models() == ["entry", "ps_0", "ps_1"]
    tables = exports.versions("ps_0")
    assert exports.versions("ps_1") == tables
    entries = [read_export_manifest(exports.path_of(version, "entry")) for version in exports.versions("entry")]
    full = [entry for entry in entries if entry.tables_version is None]
    assert [entry.version for entry in full] == tables
    dense_only = [entry for entry in entries if entry.tables_version is not None]
    assert {entry.tables_version for entry in dense_only} <= set(tables)
    assert {6, 7} & {entry.global_step for entry in dense_only}  # the save of step 6 lies between two full ones
    shards = [Servable.load(exports.path_of(tables[-1], f"ps_{index}")) for index in range(2)]
    assert [len(shard.tables["user"]) for shard in shards if shard.tables is not None] == [20, 20]


def test_exports_of_a_run_can_share_the_tables_of_its_checkpoints_and_leave_with_them(tmp_path: Path) -> None:
    made = estimator(
        tmp_path, export_shares_tables=True, save_checkpoints_steps=2, checkpoints_max_to_keep=2, background_save=False
    )
    made.train(batches(8))
    steps = [saved.step for saved in CheckpointFolder(tmp_path / "checkpoints").saved()]
    exports = ExportFolder(tmp_path / "exported_models")
    manifests = [read_export_manifest(exports.path_of(version)) for version in exports.versions()]
    assert steps == [6, 8]
    assert [manifest.global_step for manifest in manifests] == [7, 8]  # the save at the end replaced that of step 8
    assert not list(tmp_path.rglob("*.table"))
    for version in exports.versions():
        servable = Servable.load(exports.path_of(version))
        assert servable.tables is not None
        assert len(servable.tables["user"]) == 40


def test_a_checkpoint_that_retention_removed_before_hooks_hear_of_it_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, write, wait = threading.Event(), files.write_dense, BackgroundWriter.wait_until_idle

    def write_late(*given: Any) -> None:
        assert gate.wait(60)
        write(*given)

    def open_and_wait(writer: BackgroundWriter, step: int) -> None:
        if step == 5:
            gate.set()
        wait(writer, step)

    monkeypatch.setattr(files, "write_dense", write_late)  # the save of step 3 lasts until that of the end begins
    monkeypatch.setattr(BackgroundWriter, "wait_until_idle", open_and_wait)
    made = estimator(
        tmp_path,
        publish_dir=tmp_path / "published",
        save_checkpoints_steps=3,
        checkpoints_max_to_keep=1,
        keep_checkpoint_every_n_hours=None,
    )
    made.train(batches(5))
    assert [saved.step for saved in CheckpointFolder(tmp_path / "checkpoints").saved()] == [5]
    exports = ExportFolder(tmp_path / "exported_models")
    assert [read_export_manifest(exports.path_of(version)).global_step for version in exports.versions()] == [5]
    base = read_base(tmp_path / "published")
    assert base is not None
    assert base.tables.is_dir()


def test_a_folder_of_exports_that_cannot_be_read_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(config: Any) -> Path:
        raise ArtifactError("could not read 's3://bucket/exports': connection reset")

    monkeypatch.setattr(export_hook, "export_base", refuse)
    made = estimator(
        tmp_path,
        export_layout="distributed",
        save_checkpoints_steps=4,
        dense_only_save_checkpoints_steps=2,
        background_save=False,
    )
    made.train(batches(5))
    assert made.step == 5
    assert caplog.text.count("export failed") >= 2


def test_settings_of_a_distributed_export_need_its_layout() -> None:
    with pytest.raises(ConfigError, match="export_shards is 2 with export_layout 'standalone'"):
        RunnerConfig(export_shards=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_ps": 3, "num_workers": 4, "index": 2}, "num_ps is 3, and this Estimator trains in one process"),
        ({"enable_sync_training": True}, "enable_sync_training is True, .*monolith launch torchrun"),
        ({"enable_partial_sync_training": True}, "enable_partial_sync_training is True"),
        ({"only_feature_engineering": True}, "only_feature_engineering is True"),
        ({"server_type": "ps", "num_ps": 0}, "index is 0 with 0 servers|server_type is 'ps'"),
    ],
)
def test_an_estimator_never_trains_the_settings_of_a_cluster_alone(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        estimator(tmp_path, **options).train(batches(1))
    assert not (tmp_path / "checkpoints").exists()
