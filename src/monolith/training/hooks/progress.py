"""How far a run is, for the person in front of it: one live line in a terminal, now and then a line in the log else."""

from __future__ import annotations

import contextlib
import datetime
import logging
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monolith.core.errors import ConfigError
from monolith.training.hooks.base import Hook
from monolith.training.metrics.run_metrics import RunMetrics
from monolith.training.metrics.throughput import Throughput
from monolith.training.run import Run, StepResult

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

__all__ = ["DataLength", "ProgressHook"]

logger = logging.getLogger(__name__)

_REDRAW_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLength:
    """The length of the data of a run, in steps."""

    first_step: int
    """Step at which the data began."""
    epoch_steps: float
    """Steps of one pass over the data; estimated for files that do not have their number of rows."""
    epochs: int
    """Passes; 0 = endless."""

    @property
    def last_step(self) -> int | None:
        """Step at which the data ends; None if it is endless."""
        return self.first_step + math.ceil(self.epoch_steps * self.epochs) if self.epochs else None

    def epoch_at(self, step: int) -> int:
        """Return the number of the pass of a step, from 1."""
        epoch = int(max(0, step - 1 - self.first_step) / self.epoch_steps) + 1
        return min(epoch, self.epochs) if self.epochs else epoch


class ProgressHook(Hook):
    """Shows step, total, percent, epoch, samples per second, loss, the AUC of each head and the time left.

    In a terminal it is one line that is drawn again up to four times a second; elsewhere it is a line in the log
    every ``every_steps`` steps.

    Args:
        metrics: The run's metrics; the loop updates them.
        target_steps: The step at which the run ends; None when unknown.
        every_steps: Steps between two lines of the log.
        is_live: Whether to draw; None = when the console is a terminal.
        console: Where to draw; None = standard error.
        length: The length of the data; None when unknown.
    """

    def __init__(
        self,
        metrics: RunMetrics,
        *,
        target_steps: int | None = None,
        every_steps: int = 100,
        is_live: bool | None = None,
        console: Console | None = None,
        length: DataLength | None = None,
    ) -> None:
        if every_steps < 1:
            raise ConfigError(f"every_steps must be at least 1, got {every_steps}")
        self._metrics = metrics
        ends = [step for step in (target_steps, None if length is None else length.last_step) if step is not None]
        self._target_steps = min(ends, default=None)
        self._length = length
        self._first_step = 0
        self._every_steps = every_steps
        self._is_live = is_live
        self._console = console
        self._throughput: Throughput | None = None
        self._live: Live | None = None
        self._open = contextlib.ExitStack()
        self._drawn_at_s = -math.inf
        self._last: StepResult | None = None

    def on_start(self, run: Run) -> None:
        """Draw the line for the first time, in a terminal."""
        from rich.console import Console
        from rich.live import Live

        self._throughput = Throughput(run.clock)
        self._first_step = run.step if self._length is None else self._length.first_step
        self._last = None
        self._drawn_at_s = -math.inf
        console = self._console or Console(stderr=True)
        if console.is_terminal if self._is_live is None else self._is_live:
            self._live = self._open.enter_context(Live("", console=console, auto_refresh=False))
            self._open.enter_context(_log_above_the_line())

    def after_step(self, run: Run, result: StepResult) -> None:
        """Bring the line up to date when it is time."""
        if self._throughput is None:
            return
        self._throughput.add(samples=result.samples, ids=result.ids)
        self._last = result
        now_s = run.clock.monotonic_s()
        if self._live is None:
            if result.step % self._every_steps == 0:
                self._log(self._throughput, result)
        elif now_s - self._drawn_at_s >= _REDRAW_S:
            self._drawn_at_s = now_s
            self._draw(self._live, self._throughput, result)

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """Leave the last state on the screen."""
        if self._live is not None and self._throughput is not None and self._last is not None:
            self._draw(self._live, self._throughput, self._last)
        self._live = self._last = None  # a run that is over keeps no batch
        self._open.close()

    def _draw(self, live: Live, throughput: Throughput, result: StepResult) -> None:
        from rich.text import Text

        target = "" if self._target_steps is None else f"/{self._target_steps:,}"
        percent = self._percent(result.step)
        parts = [f"step {result.step:,}{target}" + ("" if percent is None else f" ({percent:.0f} %)")]
        if (epoch := self._epoch(result.step)) is not None:
            parts.append(f"epoch {epoch}")
        parts += [f"{throughput.rates().samples_per_s:,.0f} samples/s"]
        parts += [f"{name} {value:.4f}" for name, value in self._shown(result).items()]
        if (left_s := self._left_s(throughput, result.step)) is not None:
            parts.append(f"ETA {datetime.timedelta(seconds=round(left_s))}")
        live.update(Text("  ".join(parts), no_wrap=True, overflow="ellipsis"), refresh=True)

    def _log(self, throughput: Throughput, result: StepResult) -> None:
        tail = []
        if (percent := self._percent(result.step)) is not None:
            tail.append(f"total={self._target_steps} percent={percent:.1f}")
        if (epoch := self._epoch(result.step)) is not None:
            tail.append(f"epoch={epoch}")
        tail += [f"samples_per_s={throughput.rates().samples_per_s:.0f}"]
        tail += [f"{name.replace(' ', '_')}={value:.5f}" for name, value in self._shown(result).items()]
        if (left_s := self._left_s(throughput, result.step)) is not None:
            tail.append(f"left_s={left_s:.0f}")
        logger.info("step finished step=%d %s", result.step, " ".join(tail))

    def _shown(self, result: StepResult) -> dict[str, float]:
        window = self._metrics.window()
        aucs = {name: value for name, value in window.items() if name.endswith("/auc") and not math.isnan(value)}
        return {"loss": window.get("loss", result.loss)} | {
            name.replace("/", " "): value for name, value in aucs.items()
        }

    def _percent(self, step: int) -> float | None:
        if self._target_steps is None or self._target_steps <= self._first_step:
            return None
        return min(100.0, 100 * (step - self._first_step) / (self._target_steps - self._first_step))

    def _epoch(self, step: int) -> str | None:
        if self._length is None:
            return None
        epochs = f"/{self._length.epochs}" if self._length.epochs else ""
        return f"{self._length.epoch_at(step)}{epochs}"

    def _left_s(self, throughput: Throughput, step: int) -> float | None:
        seconds_per_step = throughput.rates().seconds_per_step
        if self._target_steps is None or math.isnan(seconds_per_step):
            return None
        return max(0, self._target_steps - step) * seconds_per_step


@contextlib.contextmanager
def _log_above_the_line() -> Iterator[None]:
    """Send log lines through the stream that a live line has put in the place of standard error."""
    moved = [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.__stderr__
    ]
    for handler in moved:
        handler.setStream(sys.stderr)
    try:
        yield
    finally:
        for handler in moved:
            handler.setStream(sys.__stderr__)
