"""``TaskEstimator``: the original's ``Estimator``, which takes the data from the task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from monolith.compat.tasks.monolith_base_model import MonolithBaseModel
from monolith.compat.tasks.run_settings import run_settings
from monolith.core.config import changed_fields
from monolith.core.config_fields import config_fields
from monolith.training import Estimator, RunConfig
from monolith.training.hooks import Hook
from monolith.training.task import Mode

__all__ = ["TaskEstimator"]


class TaskEstimator:
    """Trains, evaluates and exports a ``MonolithBaseModel`` on the data of its ``input_fn``.

    Args:
        model: The task.
        conf: Settings. The parameters of the task fill those that have their default.
        warm_start_from: Model folder, checkpoint or snapshot to start from; replaces ``restore_dir``.
    """

    def __init__(
        self, model: MonolithBaseModel, conf: RunConfig | None = None, warm_start_from: str | Path | None = None
    ) -> None:
        self._task = model
        settings = {name: value for name, (value, _) in run_settings(model.p).items()}
        self._limits = {name: settings.pop(name, None) for name in ("steps", "max_steps", "eval_steps")}
        if warm_start_from is not None:
            settings["restore_dir"] = warm_start_from
        given = changed_fields(conf or RunConfig())
        config_type: type[Any] = type(conf or RunConfig())
        known = {name: value for name, value in settings.items() if name in config_fields(config_type)}
        self._estimator = Estimator(model.create_model_fn(), config_type(**{**known, **given}))

    @property
    def config(self) -> RunConfig:
        """Settings of the run."""
        return self._estimator.config

    @property
    def model_dir(self) -> str:
        """Folder of the run."""
        return str(self.config.model_dir)

    def train(
        self, steps: int | None = None, max_steps: int | None = None, hooks: Sequence[Hook] | None = None
    ) -> dict[str, float]:
        """Train on ``input_fn("train")``; return the metrics. Without limits, those of the task count."""
        if steps is None and max_steps is None:
            steps, max_steps = self._limits["steps"], self._limits["max_steps"]
        chosen = [*self._task.training_hooks(), *(hooks or ())]
        return self._estimator.train(self._data("train"), steps, max_steps, hooks=chosen)

    def evaluate(self, steps: int | None = None) -> dict[str, float]:
        """Score ``input_fn("eval")``; return the metrics."""
        return self._estimator.evaluate(self._data("eval"), steps if steps is not None else self._limits["eval_steps"])

    def predict(self, checkpoint_path: str | Path | None = None) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
        """Iterate over the predictions of ``input_fn("predict")``, batch by batch."""
        return self._estimator.predict(self._data("predict"), checkpoint=checkpoint_path)

    def export_saved_model(self, name: str | None = None) -> Path:
        """Write a version that ``monolith serve`` loads; return its folder.

        Args:
            name: Name of the folder of versions in ``<model_dir>/exported_models``; None = that folder itself.
        """
        base = self._estimator.model_dir / "exported_models"
        return self._estimator.export(None if name is None else base / name)

    def get_variable_names(self) -> list[str]:
        """Return the names of the dense weights."""
        return self._estimator.get_variable_names()

    def get_variable_value(self, name: str) -> np.ndarray[Any, Any]:
        """Return one dense weight."""
        return self._estimator.get_variable_value(name)

    def latest_checkpoint(self) -> Path | None:
        """Return the folder of the newest checkpoint, or None."""
        return self._estimator.latest_checkpoint()

    def close(self) -> None:
        """Wait for running saves."""
        self._estimator.close()

    def _data(self, mode: Mode) -> Any:
        return self._task.create_input_fn(mode)()
