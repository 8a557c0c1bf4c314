"""``EarlyStoppingHook``: ends a run whose metric does not improve, and keeps the best checkpoint."""

from __future__ import annotations

import logging
import math
import os
import shutil
from pathlib import Path

from typing_extensions import override

from monolith.artifacts.checkpoint_manifest import read_manifest
from monolith.core.durable_files import replace_folder, sync_folder
from monolith.core.errors import ArtifactError, CheckpointMissing, ConfigError
from monolith.training.hooks.base import Hook
from monolith.training.hooks.save_request import SaveRequest
from monolith.training.metrics import RunMetrics
from monolith.training.run import Run, StepResult

__all__ = ["BEST", "EarlyStoppingHook"]

logger = logging.getLogger(__name__)

BEST = "best"
"""Folder of the best checkpoint in the run's folder."""

_LOWER_IS_BETTER = ("loss", "log_loss", "mse")


class EarlyStoppingHook(Hook):
    """Ends the run when a metric of windows of steps has not improved for ``patience`` windows.

    Every example is scored before the model learns from it, so the metric is one of unseen examples. With
    ``keep_best``, each improvement saves a checkpoint, and ``<model_dir>/best`` holds the best one; retention does not
    remove it. Start from it by ``restore_dir``. Every worker of a job decides by its own examples.

    Args:
        metric: ``loss``, or ``<head>/<metric>`` such as ``ctr/auc``.
        every_steps: Steps of a window.
        patience: Windows without an improvement before the end.
        min_delta: Smallest change that is an improvement.
        higher_is_better: None = True, except for losses and squared errors.
        keep_best: Whether the best checkpoint is kept; needs a run with a folder.

    Raises:
        ConfigError: A number is out of range.
    """

    def __init__(
        self,
        metric: str = "loss",
        *,
        every_steps: int = 100,
        patience: int = 3,
        min_delta: float = 0.0,
        higher_is_better: bool | None = None,
        keep_best: bool = False,
    ) -> None:
        for name, value in (("every_steps", every_steps), ("patience", patience)):
            if type(value) is not int or value < 1:
                raise ConfigError(f"EarlyStoppingHook.{name} is {value!r}, expected a whole number from 1 up")
        if not min_delta >= 0:
            raise ConfigError(f"EarlyStoppingHook.min_delta is {min_delta!r}, expected 0 or more")
        self.metric = metric
        self.best: float | None = None
        """Best value so far; None before the first window."""
        self.best_step = 0
        """Step at the end of the best window."""
        is_loss = metric.rpartition("/")[2] in _LOWER_IS_BETTER
        self._sign = 1.0 if (not is_loss if higher_is_better is None else higher_is_better) else -1.0
        self._every, self._patience, self._min_delta, self._keep_best = every_steps, patience, min_delta, keep_best
        self._metrics = RunMetrics(window_steps=every_steps)
        self._waited = 0
        self._save = SaveRequest()
        self._lacks_best = False
        self._asked_step = 0
        self._last_step: int | None = None

    @override
    def on_start(self, run: Run) -> None:
        """Start the first window; a run that starts where the last one ended by its limit continues its windows."""
        if run.step == self._last_step and self._waited < self._patience:
            return
        self._metrics.reset()
        self._waited = 0
        self._lacks_best = False

    @override
    def after_step(self, run: Run, result: StepResult) -> None:
        self._last_step = result.step
        self._metrics.update(result)
        if result.step % self._every == 0:
            self._judge_window(run, result.step)
        if self._lacks_best and not self._save.is_under_way:
            self._asked_step = result.step
            self._save.start(run, f"best {self.metric}", self._note_failure)

    def _judge_window(self, run: Run, step: int) -> None:
        values = self._metrics.window()
        if self.metric not in values:
            known = ", ".join(values)
            raise ConfigError(f"EarlyStoppingHook.metric is {self.metric!r}, expected one of the run: {known}")
        value = values[self.metric]
        if math.isnan(value):  # an AUC of one class
            return
        if self.best is None or (value - self.best) * self._sign > self._min_delta:
            self.best, self.best_step, self._waited = value, step, 0
            self._lacks_best = self._keep_best and bool(run.config.model_dir)
            return
        self._waited += 1
        if self._waited >= self._patience:
            run.stop(f"{self.metric} has not improved since step {self.best_step}, where it was {self.best:.6g}")

    def _note_failure(self, saved: Path | Exception) -> None:
        if isinstance(saved, Exception):  # logged; the next improvement asks again
            self._lacks_best = False

    @override
    def after_save(self, run: Run, path: Path) -> None:
        """Keep the first checkpoint behind the best window, before a later save can remove it."""
        if not self._lacks_best:
            return
        try:
            step = read_manifest(path).step
            if step < self._asked_step:
                return
            _replace_folder(path, run.model_dir / BEST)
        except CheckpointMissing:  # retention removed it; a later one is in place
            return
        except (ArtifactError, OSError) as error:
            self._lacks_best = not path.is_dir()
            logger.warning("best checkpoint not kept source=%s error=%s", path, error)
            return
        self._lacks_best = step < self.best_step

    @override
    def on_end(self, run: Run, error: BaseException | None) -> None:
        self._save.finish()


def _replace_folder(source: Path, target: Path) -> None:
    """Put hard links of a checkpoint at ``target``: no bytes are copied, and retention of the source loses none."""
    fresh = target.with_name(f".{target.name}-tmp")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        shutil.copytree(source, fresh, copy_function=os.link)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        if isinstance(error, shutil.Error):  # lists the errors of all files
            _, _, first = error.args[0][0]
            raise OSError(first) from error
        raise
    for folder in (fresh, *(inner for inner in fresh.rglob("*") if inner.is_dir())):
        sync_folder(folder)
    replace_folder(fresh, target)  # a kill or a reader meanwhile finds one of the two whole
    sync_folder(target.parent)
    shutil.rmtree(fresh, ignore_errors=True)
    logger.info("best checkpoint kept path=%s source=%s", target, source)
