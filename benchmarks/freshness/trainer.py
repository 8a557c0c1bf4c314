"""The trainer's process: it trains without pause, and after every step counts up in the marker and notes when."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from freshness.workload import MARKER, QUIET, Examples, RankerOfJob, Sizes, export, fill, make_estimator
from monolith.embedding import MultiTable
from monolith.ps import Security
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.cluster.worker_job import connect
from monolith.training.hooks import Hook, Run, StepResult

__all__ = ["run_local_trainer", "run_worker"]

_ONE_MORE = {"marker": np.array([[-1.0]], np.float32)}
"""A gradient that adds 1 to the marker's row, which learns by plain descent at a rate of 1."""


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
        self._times.append(time.monotonic())
        run.store.push({"marker": np.array([MARKER])}, _ONE_MORE, time_s=1_700_000_000)
        if self._pipe.poll():
            run.stop("the measurement is over")

    def on_end(self, run: Run, error: BaseException | None) -> None:
        self._pipe.send(np.array(self._times))


def run_local_trainer(folder: Path, sizes: Sizes, interval_s: float, pipe: Any) -> None:
    """Export, say so, and train with tables of its own until told to stop."""
    made = make_estimator(publish_dir=folder / "published", publish_interval_s=interval_s)
    assert isinstance(made.store, MultiTable)
    fill(made.store, sizes)
    export(made, folder / "exports")
    pipe.send("exported")
    pipe.recv()
    made.train(Examples(sizes), hooks=[Mark(pipe)])  # type: ignore[arg-type]


def run_worker(folder: Path, sizes: Sizes, interval_s: float, pipe: Any) -> None:
    """Write a checkpoint and export, say so, and be the worker of a job whose servers it is then told."""
    _write_checkpoint(folder, sizes)
    pipe.send("exported")
    addresses: Sequence[str] = pipe.recv()
    config = ClusterJobConfig(
        task=f"{RankerOfJob.__module__}:{RankerOfJob.__name__}",
        task_options={"rows": sizes.rows, "batch": sizes.batch},
        num_ps=len(addresses),
        model_dir=str(folder / "run"),
        publish_dir=folder / "published",
        publish_interval_s=interval_s,
        **QUIET,
    )
    connect(addresses, config, Security(), hooks=[Mark(pipe)]).train()


def _write_checkpoint(folder: Path, sizes: Sizes) -> None:
    """Take one step, so that there is something for a job to go on from."""
    made = make_estimator(model_dir=str(folder / "run"))
    assert isinstance(made.store, MultiTable)
    fill(made.store, sizes)
    made.train(Examples(sizes), steps=1)  # type: ignore[arg-type]
    made.close()
    export(made, folder / "exports")
