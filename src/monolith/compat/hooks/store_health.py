"""``StoreHealthHook``: pauses a run whose memory exceeds a limit, while it can still be saved."""

from __future__ import annotations

import logging
from collections.abc import Callable

from typing_extensions import override

from monolith.core.errors import ConfigError
from monolith.training.hooks.base import Hook
from monolith.training.hooks.interval import Interval
from monolith.training.hooks.process_memory import resident_bytes
from monolith.training.run import Run, StepResult

__all__ = ["StoreHealthHook"]

logger = logging.getLogger(__name__)


class StoreHealthHook(Hook):
    """Reports once, and pauses the run, when memory is above a limit.

    An operator ends the pause: save through the controller, free memory, then resume or stop. The hook reports at most
    once per run.

    Args:
        limit_bytes: The limit.
        used: Returns the bytes in use; None = the resident memory of this process.
        report: Called with one sentence, besides the log.
        every_s: Seconds of the run's clock between measurements.
    """

    def __init__(
        self,
        limit_bytes: int,
        *,
        used: Callable[[], int] = resident_bytes,
        report: Callable[[str], None] | None = None,
        every_s: float = 30.0,
    ) -> None:
        if limit_bytes < 0:
            raise ConfigError(f"limit_bytes is {limit_bytes}; it may not be negative")
        self._limit_bytes = limit_bytes
        self._used = used
        self._report = report
        self._interval = Interval(every_s)
        self._is_reported = False

    @property
    def is_healthy(self) -> bool:
        """Whether memory was within its limit at every measurement."""
        return not self._is_reported

    @override
    def on_start(self, run: Run) -> None:
        self._interval.reset()
        self._is_reported = False

    @override
    def after_step(self, run: Run, result: StepResult) -> None:
        if self._is_reported or not self._interval.is_due(run.clock.monotonic_s()):
            return
        used = self._used()
        if used > self._limit_bytes:
            self._is_reported = True
            run.pause()
            self._tell(
                f"memory is {used} bytes, above the limit of {self._limit_bytes}, at step {result.step}; the run is "
                "paused: save it, then make room (expire more, admit less, more shards) and resume, or stop"
            )

    def _tell(self, text: str) -> None:
        logger.error("%s", text)
        if self._report is not None:
            self._report(text)
