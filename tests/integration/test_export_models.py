"""Every ready-made model is exported, served without its code, and scores as it does in training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import monolith as mt
from monolith import models
from monolith.artifacts.export_folder import ExportFolder
from monolith.cli.main import app
from monolith.data import Batch
from monolith.serving import Servable
from monolith.training.config import RunnerConfig

FIELDS: Mapping[str, Any] = {"sparse": ["user", "item"], "dense": ["price"], "dim": 4}
HISTORY: Mapping[str, Any] = {"sparse": ["user"], "item": "item", "history": "history", "max_history": 3, "dim": 4}
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "deepfm": FIELDS,
    "dcnv2": FIELDS,
    "dlrm": FIELDS,
    "mmoe": {**FIELDS, "heads": ["click", "buy"]},
    "din": HISTORY,
    "dien": HISTORY,
    "two_tower": {"user": ["user"], "item": ["item"], "dim": 4},
}


class Deep(models.DeepFM):
    """A model of one's own, which the command line finds by its file."""

    def __init__(self) -> None:
        super().__init__(**FIELDS, hidden=[8])


def batch(random: np.random.Generator, size: int, labels: int = 2) -> Batch:
    def one() -> Any:
        return random.integers(1, 40, (size, 1)).tolist()

    return Batch.from_arrays(
        ids={
            "user": one(),
            "item": one(),
            "history": [random.integers(1, 40, count).tolist() for count in random.integers(0, 5, size)],
        },
        dense={"price": random.random((size, 1)) * 100},
        label=random.integers(0, 2, (size, labels)),
    )


def test_every_ready_made_model_is_tried() -> None:
    assert OPTIONS.keys() == models.MODELS.keys()


@pytest.mark.parametrize("name", OPTIONS)
def test_a_served_model_scores_as_in_training(name: str, tmp_path: Path) -> None:
    random = np.random.default_rng(11)
    model = models.build(name, {**OPTIONS[name], "vec_compressor": mt.Fp32()})
    estimator = mt.Estimator(model)
    estimator.train([batch(random, 32, model.declaration.labels) for _ in range(4)])
    servable = Servable.load(estimator.export(tmp_path), verify="checksums")
    assert servable.warm_up() > 0
    for size in (1, 17):
        given = batch(random, size, model.declaration.labels)
        wanted = next(estimator.predict([given]))
        found: dict[str, Any] = {}
        for signature, each in servable.signatures.items():
            if each.kind == "score":
                found |= servable.predict_batch(given, signature)
        assert found.keys() == wanted.keys()
        for output, value in wanted.items():
            assert np.abs(found[output] - value).max() <= 1e-6, output


def test_a_run_is_exported_from_the_command_line_and_with_every_checkpoint(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    config = RunnerConfig(model_dir=tmp_path / "run", export_when_saving=True, model_name="clicks")
    estimator = mt.Estimator(Deep, config)
    estimator.train([batch(random, 32, 1) for _ in range(3)])
    estimator.close()
    (version,) = ExportFolder(tmp_path / "run" / "exported_models").versions()
    exported = Servable.load(tmp_path / "run" / "exported_models" / str(version))
    assert (exported.name, exported.manifest.global_step) == ("clicks", 3)

    arguments = ["export", str(estimator.latest_checkpoint()), str(tmp_path / "served")]
    arguments += ["--task", f"{__file__}:Deep", "--model-version", "7", "--name", "clicks", "--quantize-bits", "16"]
    result = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    report = json.loads(result.stdout)
    assert (report["version"], report["global_step"], report["dense"]["quantize_bits"]) == (7, 3, 16)
    assert report["dense"]["bytes"] < report["dense"]["full_bytes"]
    served = Servable.load(tmp_path / "served" / "7")
    given = batch(random, 9, 1)
    wanted = exported.predict_batch(given)["ctr"]
    assert np.abs(served.predict_batch(given)["ctr"] - wanted).max() < 0.01
