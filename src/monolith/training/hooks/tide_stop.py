"""Ends a run when the hours in which it may use the machines are over. Knows no calendar: a function tells."""

from __future__ import annotations

from collections.abc import Callable

from monolith.training.hooks.base import Hook
from monolith.training.hooks.interval import Interval
from monolith.training.run import Run, StepResult

__all__ = ["TideStopHook"]


class TideStopHook(Hook):
    """Stops the run, with a checkpoint, outside a window of the day.

    Args:
        is_available: Whether the run may go on at this time (unix seconds).
        every_s: Seconds of the run's clock from one look to the next; the first step looks.
    """

    def __init__(self, is_available: Callable[[float], bool], *, every_s: float = 60.0) -> None:
        self._is_available = is_available
        self._interval = Interval(every_s)

    def on_start(self, run: Run) -> None:
        """Begin anew."""
        self._interval.reset()

    def after_step(self, run: Run, result: StepResult) -> None:
        """Look when it is time."""
        if self._interval.is_due(run.clock.monotonic_s()) and not self._is_available(run.clock.now_s()):
            run.stop("the window of the day in which this run may go on is over")
