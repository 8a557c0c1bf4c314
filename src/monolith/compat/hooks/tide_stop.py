"""``TideStopHook``: ends a run outside the hours in which it may use the machines."""

from __future__ import annotations

from collections.abc import Callable

from typing_extensions import override

from monolith.training.hooks.base import Hook
from monolith.training.hooks.interval import Interval
from monolith.training.run import Run, StepResult

__all__ = ["TideStopHook"]


class TideStopHook(Hook):
    """Stops the run, with a checkpoint, outside a window of the day.

    Args:
        is_available: Returns whether the run may continue at a time (unix seconds).
        every_s: Seconds of the run's clock between checks. The first step checks.
    """

    def __init__(self, is_available: Callable[[float], bool], *, every_s: float = 60.0) -> None:
        self._is_available = is_available
        self._interval = Interval(every_s)

    @override
    def on_start(self, run: Run) -> None:
        self._interval.reset()

    @override
    def after_step(self, run: Run, result: StepResult) -> None:
        if self._interval.is_due(run.clock.monotonic_s()) and not self._is_available(run.clock.now_s()):
            run.stop("the run is outside its window of the day")
