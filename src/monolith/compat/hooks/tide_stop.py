"""Stop a run at the end of the daily window in which it may use the machines."""

from __future__ import annotations

from collections.abc import Callable

from monolith.training.hooks.base import Hook, Run, StepResult
from monolith.training.hooks.interval import Interval

__all__ = ["TideStopHook"]


class TideStopHook(Hook):
    """Stops the run, with a checkpoint, outside a window of the day.

    Args:
        is_available: Returns whether the run may continue at this time (unix seconds).
        every_s: Seconds of the run's clock from one look to the next; the first step looks.
    """

    def __init__(self, is_available: Callable[[float], bool], *, every_s: float = 60.0) -> None:
        self._is_available = is_available
        self._interval = Interval(every_s)

    def on_start(self, run: Run) -> None:
        """Reset the interval."""
        self._interval.reset()

    def after_step(self, run: Run, result: StepResult) -> None:
        """Look when it is time."""
        if self._interval.is_due(run.clock.monotonic_s()) and not self._is_available(run.clock.now_s()):
            run.stop("the daily window of this run is over")
