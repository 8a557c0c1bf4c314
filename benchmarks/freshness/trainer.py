"""The trainer's process: it trains without pause, and after every step sets the marker and notes when."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from freshness.workload import MARKER, Examples, Sizes, export, fill, make_estimator
from monolith.embedding import MultiTable
from monolith.training.hooks import Hook, Run, StepResult

__all__ = ["run_trainer"]


class Mark(Hook):
    """Counts up in the marker's row.

    Args:
        pipe: Anything that comes over it ends the run; gets the times of all counts then.
    """

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._times: list[float] = []

    def on_start(self, run: Run) -> None:
        self._pipe.send("training")

    def after_step(self, run: Run, result: StepResult) -> None:
        assert isinstance(run.store, MultiTable)
        self._times.append(time.monotonic())
        run.store["marker"].assign([MARKER], [[float(len(self._times))]], time_s=1_700_000_000)
        if self._pipe.poll():
            run.stop("the measurement is over")

    def on_end(self, run: Run, error: BaseException | None) -> None:
        self._pipe.send(np.array(self._times))


def run_trainer(folder: Path, sizes: Sizes, interval_s: float, pipe: Any) -> None:
    """Export, say so, and train until told to stop."""
    made = make_estimator(publish_dir=folder / "published", publish_interval_s=interval_s)
    assert isinstance(made.store, MultiTable)
    fill(made.store, sizes)
    export(made, folder / "exports")
    pipe.send("exported")
    pipe.recv()
    made.train(Examples(sizes), hooks=[Mark(pipe)])  # type: ignore[arg-type]
