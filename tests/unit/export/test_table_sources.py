"""Exports read their rows shard by shard, from memory, from a checkpoint or from servers, or share a checkpoint's."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import monolith as mt
from monolith.artifacts.checkpoint_folder import CheckpointFolder
from monolith.artifacts.export_folder import ExportFolder
from monolith.artifacts.export_manifest import read_export_manifest
from monolith.core.errors import ArtifactError, ConfigError, ManifestInvalid
from monolith.data import Batch
from monolith.embedding import MultiTable
from monolith.export import ExportOptions, SavedTables, export_model, exporter, shard_writer
from monolith.export.dense_part import DensePart
from monolith.export.table_sources import share_tables
from monolith.ps import RemoteStore
from monolith.serving import Servable
from monolith.testing import PsServers


class Ranker(mt.Model):
    def __init__(self) -> None:
        super().__init__()
        self.embedding_feature("user", slot=1, occurrence_threshold=1)
        self.embedding_feature("item", slot=2)
        self.bias = self.embedding_slice(["user", "item"], "bias", 1, out="add_n")
        self.vec = self.embedding_slice("item", "vec", 3)
        self.tower = torch.nn.Linear(3, 1)

    def forward(self, batch: Batch) -> mt.Output:
        logit = self.tower(self.vec(batch)) + self.bias(batch)
        return mt.Output(logits=logit.squeeze(1), label=batch.label[:, 0])


def batch(seed: int = 0, size: int = 200) -> Batch:
    random = np.random.default_rng(seed)
    return Batch.from_arrays(
        ids={"user": random.integers(1, 60, (size, 1)), "item": random.integers(1, 90, (size, 1))},
        label=random.integers(0, 2, size),
        event_time_s=np.full(size, 1_700_000_000),
    )


def estimator(model_dir: Path, **options: Any) -> mt.Estimator:
    quiet: dict[str, Any] = {"log_step_count_steps": 0, "save_summary_steps": 0, "threads": 1, "seed": 5}
    return mt.Estimator(Ranker, mt.RunConfig(model_dir=model_dir, **{**quiet, **options}))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    estimator(folder).train([batch(seed) for seed in range(4)])
    return folder


@pytest.fixture(scope="module")
def part() -> DensePart:
    return DensePart(Ranker())


@pytest.fixture(autouse=True)
def _traced_once(part: DensePart, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracing takes seconds; the scores are not compared here."""
    monkeypatch.setattr(exporter, "DensePart", lambda model: part)


def rows_of(tables: MultiTable) -> dict[tuple[str, int], bytes]:
    return {
        (name, int(fid)): row.tobytes()
        for name in tables
        for ids, rows in tables[name].items()
        for fid, row in zip(ids, rows, strict=True)
    }


def served_rows(base: Path, shards: int) -> dict[tuple[str, int], bytes]:
    """Return the rows of all ps sub-models; each id is in the sub-model that owns it."""
    found: dict[tuple[str, int], bytes] = {}
    for index in range(shards):
        newest = ExportFolder(base).newest(f"ps_{index}")
        assert newest is not None
        servable = Servable.load(newest)
        assert servable.tables is not None
        rows = rows_of(servable.tables)
        assert {np.uint64(np.int64(fid)) % shards for _, fid in rows} <= {index}
        found |= rows
        servable.close()
    return found


@pytest.fixture(scope="module")
def wanted(trained: Path) -> dict[tuple[str, int], bytes]:
    made = estimator(trained)
    made.load()
    assert isinstance(made.store, MultiTable)
    return rows_of(made.store.to_serving())


@pytest.mark.parametrize("shards", [1, 3])
def test_a_checkpoint_is_exported_without_its_training_rows(
    trained: Path, wanted: dict[tuple[str, int], bytes], tmp_path: Path, shards: int
) -> None:
    made = estimator(trained)
    made.export(tmp_path, options=ExportOptions(layout="distributed", shards=shards))
    assert isinstance(made.store, MultiTable)
    assert sum(len(made.store[name]) for name in made.store) == 0
    assert served_rows(tmp_path, shards) == wanted


def test_a_large_shard_is_written_by_another_process(
    trained: Path, wanted: dict[tuple[str, int], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_writer, "_OWN_PROCESS_ROWS", 1)
    estimator(trained).export(tmp_path / "served", options=ExportOptions(layout="distributed", shards=2))
    assert served_rows(tmp_path / "served", 2) == wanted
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    damaged = next(run.rglob("*.rows"))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"was not written: .*checksum"):
        estimator(run).export(tmp_path / "damaged")


def test_rows_in_memory_are_exported_shard_by_shard(
    trained: Path, wanted: dict[tuple[str, int], bytes], tmp_path: Path
) -> None:
    made = estimator(trained)
    made.load()
    made.export(tmp_path, options=ExportOptions(layout="distributed", shards=3))
    assert served_rows(tmp_path, 3) == wanted


def test_rows_on_servers_are_exported_shard_by_shard(tmp_path: Path) -> None:
    specs = Ranker().declaration.table_specs()
    ids = {spec.name: np.arange(100) for spec in specs}
    rows = {spec.name: np.ones((100, spec.dim), np.float32) for spec in specs}
    with PsServers(2) as servers, RemoteStore(servers.addresses, specs) as store:
        for _ in range(3):
            store.push(ids, rows)
        options = ExportOptions(layout="distributed", shards=3)
        export_model(Ranker(), store, tmp_path, name="ranker", step=1, options=options)
        pulled = store.pull(ids)
    found = served_rows(tmp_path, 3)
    assert len(found) == 200
    for (name, fid), row in found.items():
        assert np.frombuffer(row, np.float32) == pytest.approx(pulled[name][fid], rel=1e-3)


@pytest.mark.parametrize("layout", ["standalone", "distributed"])
def test_an_export_that_shares_the_tables_of_a_checkpoint_has_no_rows_and_serves_them(
    trained: Path, wanted: dict[tuple[str, int], bytes], tmp_path: Path, layout: Any
) -> None:
    shards = 2 if layout == "distributed" else 1
    options = ExportOptions(layout=layout, shards=shards, shares_tables=True)
    path = estimator(trained).export(tmp_path, options=options)
    assert not list(tmp_path.rglob("*.table"))
    if layout == "standalone":
        servable = Servable.load(path)
        assert servable.tables is not None
        assert rows_of(servable.tables) == wanted
        assert read_export_manifest(path).shared_tables is not None
        assert servable.warm_up() > 0
    else:
        assert served_rows(tmp_path, shards) == wanted


def test_retention_keeps_a_checkpoint_while_an_export_shares_its_tables(tmp_path: Path) -> None:
    made = estimator(tmp_path / "run", save_checkpoints_steps=1, checkpoints_max_to_keep=1)
    made.train([batch(0)])
    shared = made.latest_checkpoint()
    assert shared is not None
    estimator(tmp_path / "run").export(tmp_path / "served", options=ExportOptions(shares_tables=True))
    made.train([batch(seed) for seed in range(3)], resume_data=False)
    folder = CheckpointFolder(shared.parent)
    assert [saved.step for saved in folder.saved()] == [1, 4]
    newest = ExportFolder(tmp_path / "served").newest()
    assert newest is not None
    Servable.load(newest).close()
    shutil.rmtree(newest)
    made.train([batch(7)], resume_data=False)
    assert [saved.step for saved in folder.saved()] == [5]


@pytest.mark.parametrize("when", ["retention while it is written", "a kill before the end"])
def test_an_export_that_gets_its_name_has_the_tables_that_it_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    made = estimator(tmp_path / "run", save_checkpoints_steps=1, checkpoints_max_to_keep=1)
    made.train([batch(0)])
    share = exporter.share_tables

    class Killed(BaseException):
        pass

    def train_and_share(*arguments: Any) -> Any:
        shared = share(*arguments)
        made.train([batch(1)], resume_data=False)
        return shared

    def kill(*arguments: Any) -> None:
        raise Killed

    exporting = estimator(tmp_path / "run")
    with monkeypatch.context() as patch:
        if when == "a kill before the end":
            patch.setattr(ExportFolder, "_note", kill)
            with pytest.raises(Killed):
                exporting.export(tmp_path / "served", options=ExportOptions(shares_tables=True))
        else:
            patch.setattr(exporter, "share_tables", train_and_share)
            exporting.export(tmp_path / "served", options=ExportOptions(shares_tables=True))
    made.train([batch(2)], resume_data=False)
    newest = ExportFolder(tmp_path / "served").newest()
    assert newest is not None
    Servable.load(newest).close()
    shutil.rmtree(newest)
    made.train([batch(3)], resume_data=False)
    assert len(CheckpointFolder(tmp_path / "run/checkpoints").saved()) == 1


def test_shared_tables_that_were_replaced_are_refused(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    path = estimator(run).export(tmp_path / "served", options=ExportOptions(shares_tables=True))
    tables = next((run / "checkpoints").glob("step-*/tables"))
    MultiTable(Ranker().declaration.table_specs()).save(tables)
    with pytest.raises(ManifestInvalid, match="it was replaced; export the model again"):
        Servable.load(path)
    shutil.rmtree(tables)
    with pytest.raises(ManifestInvalid, match="holds no snapshot"):
        Servable.load(path)


def test_rows_in_memory_cannot_be_shared(trained: Path, tmp_path: Path) -> None:
    made = estimator(trained)
    made.load()
    with pytest.raises(ConfigError, match="shares_tables is True, and the rows are in memory"):
        made.export(tmp_path, options=ExportOptions(shares_tables=True))
    assert not list(tmp_path.glob("*/manifest.json"))


def test_a_model_without_tables_cannot_share_them(tmp_path: Path) -> None:
    MultiTable([]).save(tmp_path)
    with pytest.raises(ConfigError, match="shares_tables is True, and the model has no tables"):
        share_tables(SavedTables(tmp_path, {}), tmp_path / "1", ExportOptions(shares_tables=True))


def test_a_table_that_the_checkpoint_lacks_is_exported_empty_and_not_shared(trained: Path, tmp_path: Path) -> None:
    (checkpoint,) = (trained / "checkpoints").glob("step-*")
    specs = {spec.name: spec for spec in Ranker().declaration.table_specs()}
    more = MultiTable([*specs.values(), *(mt.TableSpec(name, specs["user"].slices) for name in ["added"])]).specs
    rows = SavedTables(checkpoint / "tables", more).write(tmp_path / "images", (0, 1), ExportOptions())
    assert (rows["added"], rows["item"] > 0) == (0, True)


def test_an_estimator_trains_after_an_export_of_its_checkpoint(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    made = estimator(run)
    made.export(tmp_path / "served")
    made.train([batch(9)], resume_data=False)
    assert made.step == 5
    assert isinstance(made.store, MultiTable)
    assert len(made.store["item"]) > 60
