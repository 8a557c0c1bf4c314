"""Traces a few steps with torch's profiler, for chrome://tracing and Perfetto.

Which steps are traced depends on the step number alone, so a resumed run traces the steps the whole one would have.
"""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path
from typing import Any

from monolith.core.errors import ConfigError
from monolith.training.hooks.base import Hook
from monolith.training.run import Run, StepResult

__all__ = ["ProfilerHook"]

logger = logging.getLogger(__name__)


class ProfilerHook(Hook):
    """Writes ``<model_dir>/profile/steps-<first>-<last>.json`` for every window of steps it traces.

    Args:
        from_step: Steps that are finished when the first window begins.
        steps: Steps per window.
        every_steps: Steps from the beginning of a window to that of the next.
    """

    def __init__(self, from_step: int = 500, *, steps: int = 10, every_steps: int = 5000) -> None:
        if from_step < 0 or steps < 1 or every_steps <= steps:
            raise ConfigError(
                f"from_step {from_step}, steps {steps}, every_steps {every_steps}; give a first step from 0, at least "
                "one step, and a repetition longer than a window"
            )
        self._from_step = from_step
        self._steps = steps
        self._every_steps = every_steps
        self._profiler: Any = None
        self._first = 0

    def before_step(self, run: Run) -> None:
        """Begin a window with the step that comes."""
        since = run.step - self._from_step
        if self._profiler is None and since >= 0 and since % self._every_steps == 0:
            self._first = run.step + 1
            self._profiler = _start_profiler()

    def after_step(self, run: Run, result: StepResult) -> None:
        """Write a window that is full."""
        if self._profiler is not None and result.step - self._first + 1 >= self._steps:
            self._write(run.model_dir, result.step)

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """Write the incomplete trace of a window that the end of the run interrupted."""
        if self._profiler is not None:
            self._write(run.model_dir, run.step)

    def _write(self, model_dir: Path, last: int) -> None:
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        if last < self._first:
            return  # not one step was finished
        folder = model_dir / "profile"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"steps-{self._first:09d}-{last:09d}.json"
        temporary = folder / f"{path.name}-tmp-{secrets.token_hex(4)}"
        try:
            profiler.export_chrome_trace(os.fspath(temporary))
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        logger.info("profile written path=%s steps=%d", path, last - self._first + 1)


def _start_profiler() -> Any:
    try:
        import torch
        from torch.profiler import ProfilerActivity, profile
    except ImportError as exc:
        raise ConfigError("profiling needs torch: pip install 'monolith[train]'") from exc
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    profiler = profile(activities=activities, record_shapes=True)
    profiler.start()
    return profiler
