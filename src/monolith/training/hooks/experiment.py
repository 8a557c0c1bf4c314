"""``ExperimentHook``: sends the metrics of a run to MLflow or Weights & Biases.

``ExperimentLogger`` is the seam; ``MlflowLogger`` and ``WandbLogger`` implement it. Only this module imports mlflow and
wandb, and only when a run starts. A service that fails in the middle of a run is a warning, never the end of the run.
``<model_dir>/experiment.json`` holds the id of the experiment's run, so that a restarted job continues it.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from typing_extensions import override

from monolith.core.errors import ConfigError
from monolith.training.config.metrics import LoggerConfig
from monolith.training.hooks.base import Hook
from monolith.training.hooks.summaries import measure_run
from monolith.training.metrics.run_metrics import RunMetrics
from monolith.training.metrics.throughput import Throughput
from monolith.training.run import Run, StepResult

__all__ = ["ExperimentHook", "ExperimentLogger", "MlflowLogger", "WandbLogger", "make_logger"]

logger = logging.getLogger(__name__)

_RUN_FILE = "experiment.json"


class ExperimentLogger(Protocol):
    """One run of an experiment. Used by one thread."""

    def start(self, run_id: str | None, folder: Path, params: Mapping[str, str]) -> str:
        """Start a run, or continue the one with an id; return the id of the run."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log finite numbers by name."""

    def finish(self, is_good: bool) -> None:
        """End the run."""


class MlflowLogger(ExperimentLogger):
    """A run of MLflow.

    Args:
        config: Address: the tracking server, or a folder URL; None = ``<model_dir>/mlruns``. Project: the experiment.
    """

    def __init__(self, config: LoggerConfig) -> None:
        self._config = config
        self._mlflow = _load("mlflow", "mlflow")
        self._client: Any = None
        self._run_id = ""

    @override
    def start(self, run_id: str | None, folder: Path, params: Mapping[str, str]) -> str:
        address = self._config.logger_address
        if address is None:
            # MLflow asks for this before it writes plain files.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            address = (folder / "mlruns").absolute().as_uri()
        self._client = self._mlflow.MlflowClient(tracking_uri=address)
        if run_id is not None:
            self._client.update_run(run_id, status="RUNNING")
            self._run_id = run_id
            return run_id
        experiment = self._client.get_experiment_by_name(self._config.logger_project)
        number = self._client.create_experiment(self._config.logger_project) if experiment is None else None
        run = self._client.create_run(
            number if experiment is None else experiment.experiment_id, run_name=self._config.logger_run
        )
        self._run_id = str(run.info.run_id)
        for name, value in params.items():
            self._client.log_param(self._run_id, name, value)
        return self._run_id

    @override
    def log(self, values: Mapping[str, float], step: int) -> None:
        entities, now_ms = self._mlflow.entities, int(time.time() * 1000)
        metrics = [entities.Metric(_mlflow_name(name), value, now_ms, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    @override
    def finish(self, is_good: bool) -> None:
        self._client.set_terminated(self._run_id, status="FINISHED" if is_good else "FAILED")


class WandbLogger(ExperimentLogger):
    """A run of Weights & Biases; offline, its files lie in ``<model_dir>/wandb`` until ``wandb sync``.

    Args:
        config: Address: the server; None = the public one. Project: the project.
    """

    def __init__(self, config: LoggerConfig) -> None:
        self._config = config
        self._wandb = _load("wandb", "wandb")
        self._run: Any = None

    @override
    def start(self, run_id: str | None, folder: Path, params: Mapping[str, str]) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        options: dict[str, Any] = {"silent": True, "console": "off"}
        if self._config.logger_address is not None:
            options["base_url"] = self._config.logger_address
        offline = self._config.logger_offline
        self._run = self._wandb.init(
            project=self._config.logger_project,
            name=self._config.logger_run,
            dir=str(folder),
            config=dict(params),
            mode="offline" if offline else "online",
            id=run_id,
            resume=None if offline or run_id is None else "allow",
            settings=self._wandb.Settings(**options),
        )
        return str(self._run.id)

    @override
    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    @override
    def finish(self, is_good: bool) -> None:
        self._run.finish(exit_code=0 if is_good else 1)


def make_logger(config: LoggerConfig) -> ExperimentLogger:
    """Return the logger that the settings name.

    Raises:
        ConfigError: Its package is not installed; the text names the extra.
    """
    return WandbLogger(config) if config.logger == "wandb" else MlflowLogger(config)


class ExperimentHook(Hook):
    """Logs the metrics of a run every ``logger_steps`` steps, and once more at the end.

    Names are those of the TensorBoard summaries: ``loss``, ``HEAD/METRIC``, ``speed/...``, ``tables/NAME/rows``, and
    ``run/HEAD/METRIC`` at the end.

    Args:
        metrics: The run's metrics; the loop updates them.
        config: The settings of the logger.
        experiment: The logger; None = the one of the settings.
    """

    def __init__(
        self, metrics: RunMetrics, config: LoggerConfig, *, experiment: ExperimentLogger | None = None
    ) -> None:
        self._metrics = metrics
        self._config = config
        self._experiment = experiment or make_logger(config)
        self._throughput: Throughput | None = None
        self._last: StepResult | None = None
        self.failed_logs = 0
        """Calls of the logger that failed."""

    @override
    def on_start(self, run: Run) -> None:
        """Start the run of the experiment.

        Raises:
            ConfigError: The service cannot be reached, or refuses the run.
        """
        path = Path(run.model_dir) / _RUN_FILE if str(run.model_dir) else None
        try:
            run_id = self._experiment.start(_read_run_id(path, self._config), _folder(run), _params(run))
        except Exception as error:
            raise ConfigError(
                f"logger is {self._config.logger!r}, and its run cannot be started: {error}; check logger_address, or "
                "leave logger out"
            ) from error
        if path is not None:
            path.write_text(json.dumps({"logger": self._config.logger, "run_id": run_id}))
        logger.info("experiment run started logger=%s run=%s", self._config.logger, run_id)
        self._throughput = Throughput(run.clock)
        self._last = None

    @override
    def after_step(self, run: Run, result: StepResult) -> None:
        if self._throughput is None:
            return
        self._throughput.add(samples=result.samples, ids=result.ids)
        self._last = result
        if result.step % self._config.logger_steps == 0:
            self._log(measure_run(run, result, self._metrics, self._throughput), result.step)

    @override
    def on_end(self, run: Run, error: BaseException | None) -> None:
        if self._throughput is None:
            return
        if self._last is not None:
            values = {f"run/{name}": value for name, value in self._metrics.results().items()}
            values |= measure_run(run, self._last, self._metrics, self._throughput)
            self._log(values, self._last.step)
        self._throughput = self._last = None
        try:
            self._experiment.finish(error is None)
        except Exception as failure:
            self._warn(failure)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        try:
            self._experiment.log({name: value for name, value in values.items() if math.isfinite(value)}, step)
        except Exception as failure:
            self._warn(failure)

    def _warn(self, failure: Exception) -> None:
        self.failed_logs += 1
        if self.failed_logs == 1 or self.failed_logs % 100 == 0:
            logger.warning(
                "experiment log failed logger=%s failures=%d error=%s", self._config.logger, self.failed_logs, failure
            )


def _load(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"logger {extra!r} needs the package {module} ({error}); install it with: pip install 'monolith[{extra}]'"
        ) from error


def _mlflow_name(name: str) -> str:
    """Return a name with the characters that MLflow allows."""
    return "".join(c if c.isalnum() or c in "_-. /" else "_" for c in name)


def _folder(run: Run) -> Path:
    return Path(run.model_dir) if str(run.model_dir) else Path.cwd()


def _params(run: Run) -> dict[str, str]:
    """Return the facts of a run that identify it."""
    return {"model": type(run.model).__name__, "model_dir": str(run.model_dir)}


def _read_run_id(path: Path | None, config: LoggerConfig) -> str | None:
    """Return the id of the run that this model folder had with this logger."""
    if path is None or not path.exists():
        return None
    try:
        saved = json.loads(path.read_text())
        return str(saved["run_id"]) if saved["logger"] == config.logger else None
    except (ValueError, KeyError, TypeError):
        logger.warning("file of the experiment run is corrupt, starting a new run path=%s", path)
        return None
