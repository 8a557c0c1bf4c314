"""Modules of the original by their old names, and its estimator."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from monolith.compat.tasks import EstimatorSpec, MonolithBaseModel, TaskEstimator
from monolith.data import Batch
from monolith.training import RunConfig

NAMES = {
    "monolith.base_model": "MonolithModel",
    "monolith.estimator": "Estimator",
    "monolith.entry": "AdagradOptimizer",
    "monolith.model_export": "export_model",
}

PROGRAM = """
import importlib, json, sys, warnings
import monolith
for module, name in json.loads(sys.argv[1]).items():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            getattr(importlib.import_module(module), name)
    own = [each for each in caught if module in str(each.message)]
    assert len(own) == 1 and own[0].category is DeprecationWarning, (module, caught)
    assert "; " in str(own[0].message), own
    assert getattr(monolith, module.rpartition(".")[2]) is sys.modules[module]
"""


def test_each_old_name_resolves_with_one_warning() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, json.dumps(NAMES)], check=True, timeout=120)


class Bias(MonolithBaseModel):
    def input_fn(self, mode: str) -> Any:
        return [Batch.from_arrays(ids={"user": [[1], [2]]}, label=[0, 1]) for _ in range(6)]

    def model_fn(self, features: Any, mode: str) -> Any:
        self.create_embedding_feature_column("user", slot=1)
        logits = self.lookup_embedding_slice("user", "bias", 1).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, features["label"])
        return EstimatorSpec(label=features["label"], pred=torch.sigmoid(logits), loss=loss)


def test_the_estimator_of_a_task_reads_its_data_and_parameters(tmp_path: Path) -> None:
    params = Bias.params().set(clip_norm=7.0)
    params.train.set(max_steps=4, save_checkpoints_steps=2)
    estimator = TaskEstimator(Bias(params), RunConfig(model_dir=str(tmp_path / "run")))
    assert (estimator.config.gradient.clip_norm, estimator.config.checkpoint.save_checkpoints_steps) == (7.0, 2)
    estimator.train()
    assert estimator.evaluate()["global_step"] == 4
    estimator.train(steps=3)
    assert estimator.evaluate(steps=1)["global_step"] == 7
    assert next(estimator.predict())["ctr_head"].shape == (2,)
    newest = estimator.latest_checkpoint()
    assert newest is not None
    again = TaskEstimator(Bias(), RunConfig(model_dir=str(tmp_path / "next")), warm_start_from=newest)
    assert again.evaluate()["global_step"] == 7
    assert again.get_variable_names() == []
    assert estimator.export_saved_model("ranker").parent.name == "ranker"
    estimator.close()
