"""Metrics of a run in MLflow and Weights & Biases, by the real packages where they are installed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from monolith.core.errors import ConfigError
from monolith.testing.eventually import eventually
from monolith.training.config.metrics import LoggerConfig
from monolith.training.hooks import ExperimentHook
from monolith.training.metrics import RunMetrics
from step_results import FakeRun, step_result


class Recorder:
    """Records the calls; fails on request."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.values: list[tuple[int, Mapping[str, float]]] = []
        self.started: list[str | None] = []
        self.ends: list[bool] = []

    def start(self, run_id: str | None, folder: Path, params: Mapping[str, str]) -> str:
        self.started.append(run_id)
        return run_id or "first"

    def log(self, values: Mapping[str, float], step: int) -> None:
        if self.fails:
            raise OSError("the server is gone")
        self.values.append((step, values))

    def finish(self, is_good: bool) -> None:
        self.ends.append(is_good)


def train(
    folder: Path, config: LoggerConfig, steps: int = 5, *, error: BaseException | None = None, **options: Any
) -> ExperimentHook:
    run, metrics = FakeRun(folder), RunMetrics(window_steps=2)
    hook = ExperimentHook(metrics, config, **options)
    hook.on_start(run)
    for _ in range(steps):
        run.clock.sleep_s(0.5)
        run.step += 1
        result = step_result(run.step, loss=float(run.step))
        metrics.update(result)
        hook.after_step(run, result)
    hook.on_end(run, error)
    return hook


def test_a_run_logs_every_so_many_steps_and_at_its_end(tmp_path: Path) -> None:
    recorder = Recorder()
    train(tmp_path, LoggerConfig(logger="mlflow", logger_steps=2), experiment=recorder)
    assert [step for step, _ in recorder.values] == [2, 4, 5]
    assert [values["loss"] for _, values in recorder.values] == [1.5, 3.5, 3.5]
    assert recorder.values[-1][1]["run/loss"] == 3
    assert recorder.ends == [True]


def test_a_restarted_job_continues_the_run_of_its_folder(tmp_path: Path) -> None:
    first, second, other = Recorder(), Recorder(), Recorder()
    train(tmp_path, LoggerConfig(logger="mlflow"), experiment=first, error=RuntimeError())
    train(tmp_path, LoggerConfig(logger="mlflow"), experiment=second)
    train(tmp_path, LoggerConfig(logger="wandb"), experiment=other)
    assert (first.started, second.started, other.started) == ([None], ["first"], [None])
    assert first.ends == [False]
    (tmp_path / "experiment.json").write_text("{")
    train(tmp_path, LoggerConfig(logger="wandb"), experiment=other)
    assert other.started == [None, None]


def test_a_lost_service_does_not_end_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hook = train(tmp_path, LoggerConfig(logger="mlflow", logger_steps=1), experiment=Recorder(fails=True))
    assert hook.failed_logs == 6
    assert [record.message for record in caplog.records if "failed" in record.message] == [
        "experiment log failed logger=mlflow failures=1 error=the server is gone"
    ]


def test_mlflow_has_the_metrics_of_the_run(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    config = LoggerConfig(logger="mlflow", logger_project="news", logger_run="today", logger_steps=2)
    train(tmp_path, config)
    train(tmp_path, config)
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    [run] = client.search_runs([client.get_experiment_by_name("news").experiment_id])
    assert run.info.run_name == "today"
    assert run.info.status == "FINISHED"
    assert run.info.run_id == json.loads((tmp_path / "experiment.json").read_text())["run_id"]
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(each.step, each.value) for each in history[:3]] == [(2, 1.5), (4, 3.5), (5, 3.5)]
    assert run.data.metrics["ctr/auc"] == 1


def test_weights_and_biases_writes_offline_files(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    hook = train(tmp_path, LoggerConfig(logger="wandb", logger_offline=True, logger_steps=2))
    assert hook.failed_logs == 0
    [folder] = tmp_path.glob("wandb/offline-run-*")
    [file] = folder.glob("*.wandb")
    eventually(lambda: b"ctr/auc" in file.read_bytes(), 20)  # the service of the package writes the file
    assert json.loads((tmp_path / "experiment.json").read_text())["run_id"] in file.name


def test_a_service_that_cannot_be_reached_is_an_error_at_the_start(tmp_path: Path) -> None:
    class Unreachable(Recorder):
        def start(self, run_id: str | None, folder: Path, params: Mapping[str, str]) -> str:
            raise OSError("no route")

    with pytest.raises(ConfigError, match="logger is 'mlflow', and its run cannot be started: no route"):
        train(tmp_path, LoggerConfig(logger="mlflow"), experiment=Unreachable())


def test_settings_of_loggers_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="logger is 'wanbd'"):
        LoggerConfig(logger="wanbd")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="logger_offline is True and logger is 'mlflow'"):
        LoggerConfig(logger="mlflow", logger_offline=True)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"pip install 'monolith\[wandb\]'"):
        ExperimentHook(RunMetrics(), LoggerConfig(logger="wandb"))
