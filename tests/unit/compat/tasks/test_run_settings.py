"""The parameters of a task as settings of its run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from monolith.cli.main import app
from monolith.compat.tasks import BaseEmbeddingTask, BaseTask, MonolithBaseModel, NativeTask
from monolith.compat.tasks.run_settings import READ, SETTINGS, UNREAD, leaves, run_settings
from monolith.core.config_fields import config_fields
from monolith.core.errors import ConfigError
from monolith.training.cluster.job_config import ClusterJobConfig

TASK = """
import torch
from monolith.compat.tasks import EstimatorSpec, MonolithBaseModel
from monolith.core.registry import SingleTaskModelParams
from monolith.data import Batch


class Bias(MonolithBaseModel):
    def input_fn(self, mode):
        return [Batch.from_arrays(ids={"user": [[1], [2]]}, label=[0, 1]) for _ in range(8)]

    def model_fn(self, features, mode):
        self.create_embedding_feature_column("user", slot=1)
        logits = self.lookup_embedding_slice("user", "bias", 1).squeeze(1)
        return EstimatorSpec(label=features["label"], pred=torch.sigmoid(logits), loss=logits)


class Small(SingleTaskModelParams):
    def task(self):
        p = Bias.params()
        p.train.set(max_steps=3, save_checkpoints_steps=1, label_key="click")
        p.set(clip_norm=5.0)
        return p
"""


@pytest.fixture
def task(tmp_path: Path) -> str:
    (tmp_path / "small.py").write_text(TASK)
    return f"{tmp_path}/small.py:Small"


def monolith(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_parameter_is_a_setting_or_has_a_reader_or_is_refused() -> None:
    defined = {
        path for cls in (BaseTask, NativeTask, MonolithBaseModel, BaseEmbeddingTask) for path, _ in leaves(cls.params())
    }
    groups = [set(SETTINGS), set(READ), set(UNREAD)]
    assert set.union(*groups) == defined
    assert sum(map(len, groups)) == len(defined)
    assert set(SETTINGS.values()) <= set(config_fields(ClusterJobConfig))


@pytest.mark.parametrize("path", sorted(UNREAD))
def test_a_parameter_without_a_reader_is_refused_with_the_remedy(path: str) -> None:
    owners: list[Any] = [MonolithBaseModel, BaseEmbeddingTask]
    owner = next(cls for cls in owners if path in dict(leaves(cls.params())))
    params = owner.params()
    assert run_settings(params) == {}
    params.set(**{path: "other"})
    with pytest.raises(ConfigError, match=f"parameter '{path}' .* is 'other', expected its default .*; "):
        run_settings(params)


def test_a_run_has_the_limits_of_its_task(task: str, tmp_path: Path) -> None:
    monolith("train", "--task", task, "--model-dir", tmp_path / "run")
    saved = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir() if path.is_dir())
    assert len([name for name in saved if name.rpartition("-")[2].isdigit()]) == 3, saved


def test_the_printed_configuration_tells_where_values_come_from(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONOLITH_SAVE_CHECKPOINTS_STEPS", "7")
    printed = monolith(
        "train", "--task", task, "--task-options", "{train.slow_start_steps: 4}", "--max-steps", 5, "--print-config",
        "--json",
    )  # fmt: skip
    report = json.loads(printed)
    assert {name: (report[name]["value"], report[name]["from"]) for name in (
        "max_steps", "save_checkpoints_steps", "clip_norm", "label_features", "slow_start_steps", "seed"
    )} == {
        "max_steps": (5, "command line"),
        "save_checkpoints_steps": (7, "environment"),
        "clip_norm": (5.0, "task"),
        "label_features": (["click"], "task"),
        "slow_start_steps": (4, "task"),
        "seed": (0, "default"),
    }  # fmt: skip
    assert report["clip_norm"]["place"] == "Bias.clip_norm"
    assert report["max_steps"]["overrode"] == [{"value": 3, "from": "task", "place": "Bias.train.max_steps"}]


def test_a_task_is_evaluated_on_its_own_data_while_it_trains(task: str, tmp_path: Path) -> None:
    arguments = ["train", "--task", task, "--model-dir", tmp_path / "run", "--steps-per-eval", 2, "--json"]
    assert json.loads(monolith(*arguments).splitlines()[-1])["samples"] == 16


def test_options_and_flags_override_the_parameters_of_a_task(task: str, tmp_path: Path) -> None:
    arguments = ["train", "--task", task, "--task-options", "{train.max_steps: 6}", "--steps", 5, "--json"]
    monolith(*arguments, "--model-dir", tmp_path / "run")
    monolith("train", "--task", task, "--max-steps", 5, "--model-dir", tmp_path / "run")
    newest = max(path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    assert newest.endswith("5")
    unread = CliRunner().invoke(app, ["train", "--task", task, "--task-options", "{output_path: x}"])
    assert isinstance(unread.exception, ConfigError)
    assert "parameter 'output_path' of Bias is 'x'" in str(unread.exception)
