"""``Hook``: the base class of code that runs beside the training loop.

The loop calls every hook in the order given (``on_end`` in reverse) from its own thread. An exception of a hook ends
the run like any other, except in ``on_end``: there every hook runs before the first exception is raised.
"""

from __future__ import annotations

from pathlib import Path

from monolith.training.run import Run, StepResult

__all__ = ["Hook"]


class Hook:
    """Code that runs beside the loop. Override the methods that you need."""

    def on_start(self, run: Run) -> None:
        """Before the first step, after a checkpoint was restored."""

    def before_step(self, run: Run) -> None:
        """Before each step's forward pass."""

    def after_step(self, run: Run, result: StepResult) -> None:
        """After the updates of each step."""

    def on_idle(self, run: Run) -> None:
        """While a stream gives no batch, a few times per second; not for ranks that step together."""

    def before_save(self, run: Run) -> None:
        """Before the state of a checkpoint is copied."""

    def after_save(self, run: Run, path: Path) -> None:
        """After a checkpoint is durable; called by the loop's thread at the next step boundary."""

    def after_dense_save(self, run: Run, path: Path) -> None:
        """After a dense-only checkpoint is durable; called by the loop's thread at the next step boundary."""

    def before_end(self, run: Run) -> None:
        """After the last step, before its checkpoint; not called when the run failed."""

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """After the last step and its checkpoint; ``error`` is the exception that ended the run, or None."""
