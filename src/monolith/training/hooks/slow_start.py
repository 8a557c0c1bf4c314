"""Start workers one after the other, so that not all of them take the first steps of a model.

The caller gives the start step and a function that returns the shared step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from monolith.core.clock import Deadline
from monolith.core.errors import ConfigError
from monolith.training.hooks.base import Hook
from monolith.training.run import Run

__all__ = ["SlowStartHook"]

logger = logging.getLogger(__name__)

_POLL_S = 0.5


class SlowStartHook(Hook):
    """Keeps a worker from its first step until the others have come far enough.

    The wait begins to count against ``max_wait_s`` when the training is seen to move (a step above 1): a chief that
    restores slowly does not use up the timeout. After the timeout the worker starts regardless.

    Args:
        start_step: The step of the whole training at which this worker starts; 0 = immediately.
        global_step: Returns the step of the whole training.
        max_wait_s: How long to wait once it moves.
    """

    def __init__(self, start_step: int, global_step: Callable[[], int], *, max_wait_s: float = 600.0) -> None:
        if start_step < 0 or not max_wait_s >= 0:
            raise ConfigError(f"start_step {start_step}, max_wait_s {max_wait_s}; neither may be negative")
        self._start_step = start_step
        self._global_step = global_step
        self._max_wait_s = max_wait_s

    def on_start(self, run: Run) -> None:
        """Wait for the step, or for the time to be over."""
        deadline: Deadline | None = None
        step = self._global_step()
        if step < self._start_step:
            logger.info("worker waits start_step=%d global_step=%d", self._start_step, step)
        while step < self._start_step:
            if deadline is None and step > 1:
                deadline = Deadline(run.clock, self._max_wait_s)
            if deadline is not None and deadline.is_past:
                logger.warning(
                    "worker begins without its step start_step=%d global_step=%d waited_s=%.0f",
                    self._start_step,
                    step,
                    self._max_wait_s,
                )
                return
            run.clock.sleep_s(_POLL_S)
            step = self._global_step()
