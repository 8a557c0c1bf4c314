from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import monolith as mt
from monolith.artifacts.export_folder import ExportFolder
from monolith.artifacts.export_manifest import PROGRAM, TORCH_PROGRAM, WARMUP, WEIGHTS, read_export_manifest
from monolith.artifacts.export_warmup import WarmupRequest, encode_warmup
from monolith.core.errors import ConfigError, DimensionMismatch, ManifestInvalid, RecordCorrupt, VersionConflict
from monolith.data import Batch
from monolith.data.records.tfrecord import TfRecordWriter, read_tfrecords
from monolith.embedding import Fp16, MultiTable
from monolith.export import ExportOptions, export_model, exporter
from monolith.export.dense_part import DensePart, _difference
from monolith.export.options import check_format
from monolith.export.sample_inputs import sample_inputs
from monolith.export.tracing import TracedModel, input_names, trace
from monolith.serving import Servable


class Ranker(mt.Model):
    """Everything that an export has to carry: a pooled slice, a list of tensors, a sequence, numbers, extra outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_feature("user", slot=1)
        self.embedding_feature("item", slot=2, combiner="mean")
        self.embedding_feature("history", shared_with="item", max_sequence_length=2)
        self.dense_feature("age")
        options: dict[str, Any] = {"initializer": mt.RandomUniform(-1, 1), "compressor": Fp16()}
        self.bias = self.embedding_slice(["user", "item"], "bias", 1, out="add_n", **options)
        # A rate that is a bare function has no text form; an export does not need it.
        self.vec = self.embedding_slice(["user", "item"], "vec", 4, learning_rate=lambda step: 0.1, **options)
        self.past = self.embedding_slice("history", "vec", 4, learning_rate=None)
        self.tower = torch.nn.Sequential(torch.nn.Linear(13, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def forward(self, batch: Batch) -> list[mt.Output]:
        user, item = self.vec(batch)
        past: Tensor = self.past(batch).sum(dim=1)
        logit = self.tower(torch.cat([user, item, past, batch.dense["age"]], dim=1)).squeeze(1)
        logit = logit + self.bias(batch).squeeze(1)
        hour = (batch.event_time_s % 86400).to(torch.float32) / 86400
        return [
            mt.Output(head="click", logits=logit, label=batch.label[:, 0], extra={"vector": past, "hour": hour}),
            mt.Output(head="price", predictions=logit * 3, is_classification=False),
        ]


def batch(random: np.random.Generator, size: int) -> Batch:
    def lists(most: int) -> list[list[int]]:
        return [random.integers(1, 30, count).tolist() for count in random.integers(0, most + 1, size)]

    return Batch.from_arrays(
        ids={"user": lists(1), "item": lists(3), "history": lists(4)},
        dense={"age": random.random((size, 1))},
        label=random.integers(0, 2, size),
        event_time_s=random.integers(1_600_000_000, 1_700_000_000, size),
    )


@pytest.fixture(scope="module")
def estimator() -> mt.Estimator:
    random = np.random.default_rng(3)
    made = mt.Estimator(Ranker, mt.RunConfig(seed=5))
    made.train([batch(random, 32) for _ in range(3)])
    return made


@pytest.fixture(scope="module")
def part(estimator: mt.Estimator) -> DensePart:
    return DensePart(estimator.model)


@pytest.fixture(autouse=True)
def _traced_once(part: DensePart, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracing takes seconds, and gives the same each time."""
    monkeypatch.setattr(exporter, "DensePart", lambda model: part)


def export(estimator: mt.Estimator, base: Path, **options: Any) -> Path:
    arguments = {key: options.pop(key) for key in ("version", "warmup", "overwrite") if key in options}
    return export_model(
        estimator.model, estimator.store, base, name="ranker", step=3, options=ExportOptions(**options), **arguments
    )


def scores(servable: Servable, given: Batch) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for name, signature in servable.signatures.items():
        if signature.kind == "score":
            found |= servable.predict_batch(given, name)
    return found


def difference(estimator: mt.Estimator, servable: Servable) -> float:
    random = np.random.default_rng(8)
    largest = 0.0
    for size in (1, 9):
        given = batch(random, size)
        wanted, found = next(estimator.predict([given])), scores(servable, given)
        assert wanted.keys() == found.keys() == {"click", "price", "vector", "hour"}
        largest = max(largest, *(float(np.abs(wanted[name] - found[name]).max()) for name in wanted))
    return largest


def test_a_full_precision_export_scores_as_training_does(estimator: mt.Estimator, tmp_path: Path) -> None:
    was_training = estimator.model.training
    path = export(estimator, tmp_path, full_precision=True, version=4)
    assert path == tmp_path / "4"
    assert estimator.model.training == was_training
    servable = Servable.load(path, verify="checksums")
    assert difference(estimator, servable) <= 1e-6
    assert servable.warm_up() == 15
    manifest = servable.manifest
    assert manifest.heads == ("click", "price")
    assert list(manifest.signatures["serving_default"].outputs) == ["click", "price"]
    assert manifest.signatures["vector"].outputs["vector"].shape == (-1, 4)
    assert manifest.dense is not None
    assert manifest.dense.max_abs_error <= 1e-6
    # Inputs that predictions do not need are not asked for.
    assert [name for name in manifest.dense.inputs if "/" not in name] == ["event_time_s"]


def test_tables_are_compressed_as_their_slices_declare(estimator: mt.Estimator, tmp_path: Path) -> None:
    half = Servable.load(export(estimator, tmp_path / "half"))
    full = Servable.load(export(estimator, tmp_path / "full", full_precision=True))
    assert {kind for table in half.manifest.tables for _, kind in table.compressors} == {"fp16"}
    assert {kind for table in full.manifest.tables for _, kind in table.compressors} == {"fp32"}
    assert 0 < difference(estimator, half) < 0.01
    trained = estimator.store["user"]  # type: ignore[index]
    assert np.abs(half.lookup("user", range(30)) - trained.lookup(range(30))).max() < 0.001


@pytest.mark.parametrize(("bits", "share"), [(8, 0.5), (16, 0.7)])
def test_fewer_bits_make_smaller_files_and_the_error_is_reported(
    estimator: mt.Estimator, tmp_path: Path, bits: int, share: float
) -> None:
    path = export(estimator, tmp_path, quantize_bits=bits, full_precision=True)
    servable = Servable.load(path)
    dense = servable.manifest.dense
    assert dense is not None
    assert dense.quantize_bits == bits
    assert "tower.0.weight" in dense.quantized
    assert dense.bytes == (path / PROGRAM).stat().st_size + (path / WEIGHTS).stat().st_size
    assert (path / WEIGHTS).stat().st_size < share * sum(
        4 * np.prod(info.shape, dtype=int) + 100 for info in dense.weights.values()
    )
    assert 0 < dense.weight_error < 0.01
    assert dense.quantization_error > 0
    assert difference(estimator, servable) < 0.1


def test_dense_weights_of_a_quantized_export_can_be_replaced(estimator: mt.Estimator, tmp_path: Path) -> None:
    servable = Servable.load(export(estimator, tmp_path, quantize_bits=8, full_precision=True))
    before = difference(estimator, servable)
    weights = {name: value.numpy() * 0 for name, value in estimator.model.state_dict().items()}
    servable.apply(weights=weights)
    given = batch(np.random.default_rng(1), 3)
    blank = scores(servable, given)["click"]
    assert not np.allclose(blank, next(estimator.predict([given]))["click"])
    servable.apply(weights={name: value.numpy() for name, value in estimator.model.state_dict().items()})
    assert difference(estimator, servable) == pytest.approx(before, abs=1e-6)


def test_a_distributed_export_splits_the_tables_by_id(estimator: mt.Estimator, tmp_path: Path) -> None:
    entry = export(estimator, tmp_path, layout="distributed", shards=3, has_remote_dense=True, version=9)
    assert entry == tmp_path / "entry" / "9"
    folder = ExportFolder(tmp_path)
    assert folder.sub_models() == ["dense_0", "entry", "ps_0", "ps_1", "ps_2"]
    assert all(folder.versions(sub) == [9] for sub in folder.sub_models())
    assert all((tmp_path / sub / "ExportSaverListenerState").is_file() for sub in folder.sub_models())
    parts = [Servable.load(folder.path_of(9, f"ps_{index}")) for index in range(3)]
    for index, part_of in enumerate(parts):
        assert part_of.manifest.shard == (index, 3)
        assert part_of.tables is not None
        for name in part_of.tables:
            for ids, _ in part_of.tables[name].items():
                assert set((ids.view(np.uint64) % 3).tolist()) <= {index}
    tables = estimator.store
    assert isinstance(tables, MultiTable)
    assert sum(len(part_of.tables["item"]) for part_of in parts if part_of.tables) == len(tables["item"])
    manifest = read_export_manifest(entry)
    assert (manifest.sub_model, manifest.dense, manifest.has_tables) == ("entry", None, False)
    assert [table.name for table in manifest.tables] == ["item", "user"]
    dense = Servable.load(folder.path_of(9, "dense_0"))
    assert list(dense.signatures) == ["gpu_remote_call"]

    class Rows:
        def pull(self, ids: Any) -> Any:
            found = {name: np.zeros((len(keys), tables[name].dim), np.float32) for name, keys in ids.items()}
            for name, keys in ids.items():
                for index, part_of in enumerate(parts):
                    own = keys.view(np.uint64) % 3 == index
                    found[name][own] = part_of.lookup(name, keys[own])
            return found

    class Dense:
        def run(self, inputs: Any, outputs: Any) -> Any:
            wanted = {name: inputs[name] for name in dense.signatures["gpu_remote_call"].inputs}
            return {name: dense.call("gpu_remote_call", wanted)[name] for name in outputs}

    whole = Servable.load(export(estimator, tmp_path / "whole"))
    given = batch(np.random.default_rng(2), 5)
    found = scores(Servable.load(entry, rows=Rows(), dense=Dense()), given)
    for name, value in scores(whole, given).items():
        assert found[name].tolist() == value.tolist()


def test_a_dense_only_export_leaves_the_tables_alone(estimator: mt.Estimator, tmp_path: Path) -> None:
    export(estimator, tmp_path, layout="distributed", shards=2, version=1)
    export(estimator, tmp_path, layout="distributed", shards=2, is_dense_only=True, version=2)
    folder = ExportFolder(tmp_path)
    assert folder.versions("entry") == [1, 2]
    assert folder.versions("ps_0") == folder.versions("ps_1") == [1]
    assert read_export_manifest(folder.path_of(2, "entry")).shard == (0, 2)


def test_rows_of_zeros_are_left_out_on_request(estimator: mt.Estimator, tmp_path: Path) -> None:
    tables = MultiTable(estimator.model.declaration.table_specs())
    tables["user"].assign([1, 2], np.zeros((2, 5)))
    tables["user"].assign([3], np.ones((1, 5)))
    rows = {}
    for skips in (False, True):
        path = export_model(
            estimator.model, tables, tmp_path, name="r", step=1, options=ExportOptions(skip_zero_rows=skips)
        )
        rows[skips] = {table.name: table.rows for table in read_export_manifest(path).tables}
    assert rows == {False: {"item": 0, "user": 3}, True: {"item": 0, "user": 1}}


def test_rows_of_another_store_come_over_a_snapshot(estimator: mt.Estimator, tmp_path: Path) -> None:
    tables = estimator.store

    class Remote:
        specs = tables.specs
        pull = push = restore = None

        def snapshot(self, path: Any) -> Any:
            return tables.snapshot(path)

    path = export_model(estimator.model, Remote(), tmp_path, name="r", step=1)  # type: ignore[arg-type]
    assert {table.name: table.rows for table in read_export_manifest(path).tables} == {
        name: len(tables[name])  # type: ignore[index]
        for name in ("item", "user")
    }


def test_a_torch_package_is_written_on_request(estimator: mt.Estimator, tmp_path: Path) -> None:
    path = export(estimator, tmp_path, with_torch_program=True)
    assert read_export_manifest(path).has_torch_program
    program = torch.export.load(path / TORCH_PROGRAM).module()
    size = 4
    names = input_names(estimator.model.declaration)
    shapes = {f"layout/{each.name}": each.shape for each in estimator.model.declaration.tensors()}
    columns = {"label": (1,), "label_mask": (1,), "dense/age": (1,)}
    tensors = [torch.ones(size, *(shapes | columns).get(name, ())) for name in names]
    tensors = [
        each.to({"label_mask": torch.bool, "event_time_s": torch.int64, "uid": torch.int64}.get(name, torch.float32))
        for name, each in zip(names, tensors, strict=True)
    ]
    assert program(tensors)[0].shape == (size,)


def test_a_torch_program_is_served_with_torch(estimator: mt.Estimator, tmp_path: Path) -> None:
    path = export(estimator, tmp_path, program="torch", full_precision=True)
    manifest = read_export_manifest(path)
    assert manifest.dense is not None
    assert (manifest.dense.kind, manifest.has_torch_program) == ("torch", True)
    assert manifest.dense.bytes == (path / TORCH_PROGRAM).stat().st_size
    assert not (path / PROGRAM).exists()
    servable = Servable.load(path, verify="checksums")
    assert servable.warm_up() > 0
    assert difference(estimator, servable) < 1e-6
    weights = {name: value.numpy() for name, value in estimator.model.state_dict().items()}
    servable.apply(weights={name: value * 0 for name, value in weights.items()})
    assert difference(estimator, servable) > 1e-3
    servable.apply(weights=weights)
    assert difference(estimator, servable) < 1e-6
    with pytest.raises(DimensionMismatch, match="export the changed model"):
        servable.apply(weights={"tower.0.bias": np.zeros(3, np.float32)})


def test_a_torch_program_may_be_elsewhere(estimator: mt.Estimator, tmp_path: Path) -> None:
    entry = export(
        estimator,
        tmp_path,
        layout="distributed",
        has_remote_dense=True,
        program="torch",
        full_precision=True,
        version=4,
    )
    assert not read_export_manifest(entry).has_torch_program
    dense, rows = (Servable.load(tmp_path / name / "4") for name in ("dense_0", "ps_0"))

    class Asked:
        def run(self, inputs: Any, outputs: Any) -> Any:
            found = dense.call("gpu_remote_call", {name: inputs[name] for name in dense.manifest.dense.inputs})  # type: ignore[union-attr]
            return {name: found[name] for name in outputs}

    assert difference(estimator, Servable.load(entry, rows=rows.tables, dense=Asked())) < 1e-6


def test_a_server_without_torch_names_the_missing_package(estimator: mt.Estimator, tmp_path: Path) -> None:
    path = export(estimator, tmp_path, program="torch")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from monolith.core.errors import ConfigError\n"
        "from monolith.serving import Servable\n"
        "try: Servable.load(sys.argv[1])\n"
        "except ConfigError as error: print(error)"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=300)
    assert "pip install 'monolith[train]'" in ended.stdout, ended.stderr
    assert "--program onnx" in ended.stdout
    (path / TORCH_PROGRAM).write_bytes(b"x" * (path / TORCH_PROGRAM).stat().st_size)
    with pytest.raises(ManifestInvalid, match="is corrupt"):
        Servable.load(path)


class Unspeakable(Ranker):
    """Uses an operator that ONNX lacks."""

    def forward(self, batch: Batch) -> Any:
        first = super().forward(batch)[0]
        scores = torch.special.digamma(first.logits.abs() + 1)
        loss = (scores - batch.label[:, 0]).square().mean()
        return mt.Output(head="click", predictions=scores, loss=loss, is_classification=False)


def test_an_operator_outside_onnx_goes_as_a_torch_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "DensePart", DensePart)
    random = np.random.default_rng(3)
    made = mt.Estimator(Unspeakable, mt.RunConfig(seed=5))
    made.train([batch(random, 8)])
    given = batch(random, 5)
    wanted = next(made.predict([given]))["click"]
    with pytest.raises(ConfigError, match=r"cannot be converted to ONNX.*--program torch"):
        export(made, tmp_path)
    assert ExportFolder(tmp_path).versions() == []
    servable = Servable.load(export(made, tmp_path, program="torch", full_precision=True))
    np.testing.assert_allclose(servable.predict_batch(given)["click"], wanted, atol=1e-6)


class Namesake(Ranker):
    """Has a weight with the name of its head."""

    def __init__(self) -> None:
        super().__init__()
        self.click = torch.nn.Parameter(torch.zeros(1))

    def forward(self, batch: Batch) -> Any:
        first = super().forward(batch)[0]
        return mt.Output(head="click", logits=first.logits + self.click, label=batch.label[:, 0])


def test_a_weight_with_the_name_of_a_head_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "DensePart", DensePart)
    made = mt.Estimator(Namesake, mt.RunConfig(seed=5))
    made.train([batch(np.random.default_rng(3), 8)])
    with pytest.raises(ConfigError, match=r"weight is 'click'.*input or output"):
        export(made, tmp_path)
    assert ExportFolder(tmp_path).versions() == []


class Plain(mt.Model):
    """Has one input, and the outputs that a test wants."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.dense_feature("age")
        self.kind = kind
        self.scale = torch.nn.Parameter(torch.full((1,), 2.0))

    def forward(self, batch: Batch) -> mt.Output:
        logits = batch.dense["age"][:, 0] * self.scale
        extra = self.scale if self.kind == "weight" else (logits * 2).to(torch.bfloat16)
        return mt.Output(head="click", logits=logits, extra={"more": extra})


def test_an_output_may_be_a_weight_and_not_a_type_that_numpy_lacks() -> None:
    assert DensePart(Plain("weight")).outputs["more"].shape == (1,)
    with pytest.raises(ConfigError, match=r"output 'more' has type bfloat16.*float\(\)"):
        DensePart(Plain("bfloat16"))


# --- features that share a table ---


def test_a_shared_table_is_exported_once(estimator: mt.Estimator, tmp_path: Path) -> None:
    """``history`` has the rows of ``item``: its ids, and no separate table, in any form of the export."""
    alone = export(estimator, tmp_path / "whole", full_precision=True)
    manifest = read_export_manifest(alone)
    assert [table.name for table in manifest.tables] == ["item", "user"]
    images = sorted((alone / "tables").glob("*.table"))
    assert len(images) == 2
    assert manifest.declaration is not None
    tables = {each["name"]: each["table"] for each in manifest.declaration["features"]}
    assert tables == {"user": "user", "item": "item", "history": "item"}
    entry = export(estimator, tmp_path / "split", layout="distributed", shards=2, full_precision=True, version=1)
    assert [table.name for table in read_export_manifest(entry).tables] == ["item", "user"]
    parts = [Servable.load(tmp_path / "split" / f"ps_{index}" / "1") for index in range(2)]
    store: Any = estimator.store
    for name in ("item", "user"):
        assert sum(len(part.tables[name]) for part in parts if part.tables) == len(store[name])
    for part in parts:
        assert len(list((part.folder / "tables").glob("*.table"))) == 2

    class Split:
        def pull(self, ids: Any) -> Any:
            # An id is in one part only; absent rows are zeros.
            pulled = [part.tables.pull(ids) for part in parts if part.tables]
            return {name: sum(each[name] for each in pulled) for name in ids}

    assert difference(estimator, Servable.load(alone)) < 1e-6
    assert difference(estimator, Servable.load(entry, rows=Split())) < 1e-6


def test_recorded_requests_are_carried_along(estimator: mt.Estimator, tmp_path: Path) -> None:
    file = tmp_path / "requests"
    log = encode_warmup(WarmupRequest(model="m", signature="vector", input="examples", records=(b"",)))
    with TfRecordWriter(file) as writer:
        writer.write(log)
    path = export(estimator, tmp_path / "out", warmup=file)
    assert list(read_tfrecords(path / WARMUP)) == [log]
    assert Servable.load(path).warm_up() == 1


def test_every_file_of_an_export_is_on_disk_before_it_gets_its_name(
    estimator: mt.Estimator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "requests"
    with TfRecordWriter(file) as writer:
        writer.write(encode_warmup(WarmupRequest(model="m", signature="vector", input="examples", records=(b"",))))
    fsync, synced = os.fsync, set[int]()

    def note(handle: int) -> None:
        synced.add(os.fstat(handle).st_ino)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note)
    path = export(estimator, tmp_path / "out", warmup=file)
    files = [each for each in path.rglob("*") if each.is_file() and each.suffix != ".table"]  # the engine syncs tables
    assert [each.name for each in files if each.stat().st_ino not in synced] == []


def test_warm_up_files_that_do_not_fit_are_refused(estimator: mt.Estimator, tmp_path: Path) -> None:
    file = tmp_path / "requests"
    with pytest.raises(ConfigError, match="warm-up file is"):
        export(estimator, tmp_path / "out", warmup=file)
    for content, error, reason in (
        (encode_warmup(WarmupRequest(model="m", signature="x", input="examples", records=())), ConfigError, "'x'"),
        (b"something", RecordCorrupt, "record 0"),
    ):
        with TfRecordWriter(file) as writer:
            writer.write(content)
        with pytest.raises(error, match=reason):
            export(estimator, tmp_path / "out", warmup=file)
    assert ExportFolder(tmp_path / "out").versions() == []


def test_a_version_that_is_there_is_refused(estimator: mt.Estimator, tmp_path: Path) -> None:
    export(estimator, tmp_path, version=1)
    with pytest.raises(VersionConflict):
        export(estimator, tmp_path, version=1)
    export(estimator, tmp_path, version=1, overwrite=True)
    assert ExportFolder(tmp_path).versions() == [1]


def test_a_program_too_far_from_torch_is_refused_and_leaves_nothing(estimator: mt.Estimator, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="differs from torch"):
        export(estimator, tmp_path, tolerance=1e-12)
    assert list(tmp_path.iterdir()) == []


def test_one_onnx_file_holds_the_dense_part_alone(estimator: mt.Estimator, tmp_path: Path) -> None:
    import onnxruntime

    file = tmp_path / "sub" / "dense.onnx"
    described = exporter.export_onnx(estimator.model, file)
    assert [path.name for path in file.parent.iterdir()] == ["dense.onnx"]
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    assert {each.name for each in session.get_inputs()} == set(described.inputs)
    small = exporter.export_onnx(estimator.model, tmp_path / "small.onnx", options=ExportOptions(quantize_bits=8))
    assert small.bytes < described.bytes
    with pytest.raises(VersionConflict, match="--overwrite"):
        exporter.export_onnx(estimator.model, file)
    with pytest.raises(ConfigError, match="is the folder"):
        exporter.export_onnx(estimator.model, tmp_path)


def test_nothing_of_the_machine_is_in_the_program(estimator: mt.Estimator, tmp_path: Path) -> None:
    content = (export(estimator, tmp_path) / PROGRAM).read_bytes()
    assert str(Path(__file__).parent).encode() not in content
    assert b".py" not in content


def test_an_export_is_served_without_torch(estimator: mt.Estimator, tmp_path: Path) -> None:
    path = export(estimator, tmp_path)
    code = (
        "import json, sys; from monolith.serving import Servable; servable = Servable.load(sys.argv[1]);"
        "found = servable.predict_features([{'user': {'fids': [3]}, 'age': 0.5}]);"
        "print(json.dumps([name for name in ('torch', 'onnx', 'grpc') if name in sys.modules]), found['click'].shape)"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=300)
    assert ended.stdout == "[] (1,)\n", ended.stderr


def test_estimators_export_beside_their_checkpoints(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    made = mt.Estimator(Ranker, mt.RunConfig(model_dir=tmp_path, checkpoints_max_to_keep=1))
    with pytest.raises(ConfigError, match="model_dir"):
        mt.Estimator(Ranker).export()
    made.train([batch(random, 8)])
    first = made.export(version=1)
    assert first == tmp_path / "exported_models" / "1"
    assert read_export_manifest(first).name == "ranker"
    made.train([batch(random, 8)])  # keeps one checkpoint
    made.export(version=2, quantize_bits=16)
    folder = ExportFolder(tmp_path / "exported_models")
    assert folder.versions() == [2]
    assert folder.recorded() == {2: 2}


# --- models that cannot be exported ---


class Bad(Ranker):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, batch: Batch) -> Any:
        outputs = super().forward(batch)
        if self.how == "ids":
            return mt.Output(logits=batch.ids["user"].values.float())
        if self.how == "extras":
            return mt.Output(logits=batch.extras["uid"])
        if self.how == "values" and outputs[0].logits.sum() > 0:
            return outputs
        if self.how == "names":
            return mt.Output(logits=outputs[0].logits, head="a", extra={"a": outputs[0].logits})
        return outputs[:1]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("ids", r"batch\.ids\['user'\].*declare a slice"),
        ("extras", r"batch\.extras\['uid'\]"),
        ("values", "must not depend on the values"),
        ("names", "two outputs is 'a'"),
    ],
)
def test_a_forward_that_cannot_be_exported_raises_the_reason(how: str, reason: str) -> None:
    model = Bad(how).eval()
    declaration = model.declaration
    inputs = sample_inputs(declaration)[0]
    with pytest.raises(ConfigError, match=reason), torch.no_grad():
        trace(TracedModel(model), [torch.from_numpy(inputs[name]) for name in input_names(declaration)])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"quantize_bits": 4}, "expected 8, 16"),
        ({"program": "torchscript"}, "'onnx' or 'torch'"),
        ({"program": "torch", "quantize_bits": 8}, "expected None for a torch program"),
        ({"layout": "both"}, "'standalone' or 'distributed'"),
        ({"shards": 2}, "distributed"),
        ({"layout": "distributed", "shards": 0}, "from 1"),
        ({"is_dense_only": True}, "distributed"),
        ({"tolerance": float("nan")}, "above 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        ExportOptions(**options)


def test_torchscript_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="deprecated"):
        check_format("torchscript")
    with pytest.raises(ConfigError, match="monolith, onnx"):
        check_format("savedmodel")
    check_format("onnx")


def test_a_manifest_is_plain_json(estimator: mt.Estimator, tmp_path: Path) -> None:
    body = json.loads((export(estimator, tmp_path) / "manifest.json").read_text())["body"]
    assert body["format"] == "monolith.export"
    assert [feature["name"] for feature in body["declaration"]["features"]] == ["user", "item", "history"]


def test_a_program_that_answers_nan_where_torch_has_a_number_differs_without_bound() -> None:
    torch_says = [{"click": np.array([0.5, np.nan], np.float32)}]
    assert _difference(torch_says, [{"click": np.array([0.5, np.nan], np.float32)}]) == 0
    assert _difference(torch_says, [{"click": np.array([np.nan, np.nan], np.float32)}]) == np.inf
    assert _difference(torch_says, [{"click": np.array([0.5, 0.25], np.float32)}]) == np.inf
