"""How fast the run goes: steps and seconds per step, every half minute of the run's clock.

Rates of samples and ids are metrics of the run, in ``monolith.training.metrics``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from monolith.core.errors import ConfigError
from monolith.training.hooks.base import Hook
from monolith.training.run import Run, StepResult

__all__ = ["StepInterval", "ThroughputHook"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInterval:
    """The steps of one interval."""

    step: int
    """Steps finished at its end, over all runs."""
    run_steps: int
    """Steps finished in it."""
    run_steps_elapsed_time: float
    """Seconds per step."""


class ThroughputHook(Hook):
    """Measures the run's pace.

    An interval ends with the first step that finishes ``every_s`` after its beginning. The first one begins with the
    end of the first step, which includes one-time work; its time is ``run_start_elapsed_time``.
    """

    def __init__(self, every_s: float = 30.0) -> None:
        if not every_s > 0:
            raise ConfigError(f"every_s is {every_s}; give a positive number of seconds")
        self._every_s = every_s
        self._started_s = 0.0
        self._begin_s = 0.0
        self._begin_step = 0
        self._run_start_s: float | None = None
        self._latest: StepInterval | None = None

    @property
    def latest(self) -> StepInterval | None:
        """The last complete interval; None before there is one."""
        return self._latest

    @property
    def run_start_elapsed_time(self) -> float | None:
        """Seconds from the start of the run to the end of its first step; None before that."""
        return self._run_start_s

    def on_start(self, run: Run) -> None:
        """Start the clock."""
        self._started_s = run.clock.monotonic_s()
        self._run_start_s = self._latest = None

    def after_step(self, run: Run, result: StepResult) -> None:
        """Count, and tell when an interval is full."""
        now_s = run.clock.monotonic_s()
        if self._run_start_s is None:
            self._run_start_s = now_s - self._started_s
            self._begin_s, self._begin_step = now_s, result.step
            logger.info("first step is done run_start_elapsed_time=%.3f", self._run_start_s)
        elif now_s - self._begin_s >= self._every_s:
            steps = result.step - self._begin_step
            per_step_s = (now_s - self._begin_s) / steps
            self._latest = StepInterval(step=result.step, run_steps=steps, run_steps_elapsed_time=per_step_s)
            self._begin_s, self._begin_step = now_s, result.step
            logger.info("pace step=%d run_steps=%d run_steps_elapsed_time=%.6f", result.step, steps, per_step_s)
