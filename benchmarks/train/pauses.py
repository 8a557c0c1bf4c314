"""The case about checkpoints: how long training stands still while one is taken and written in the background."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from measure.results import Result
from monolith.training.hooks import Hook, Run, StepResult
from train.contestants import Ours
from train.results import progress
from train.workload import Sizes, Workload

__all__ = ["StepTimes", "pause_cases"]

SCRATCH = Path(__file__).resolve().parents[2] / "build" / "bench"
"""On the disk of the checkout: a folder in memory would not be what a run writes to."""
WARM_UP_STEPS = 10


class StepTimes(Hook):
    """Notes when steps ended, and when saves began, let the next step begin, and became safe.

    Ends the run after so many saves.
    """

    def __init__(self, saves: int) -> None:
        self._saves = saves
        self.ends: list[float] = []
        self.begun: list[float] = []
        self.went_on: list[float] = []
        self.safe: list[float] = []

    def before_step(self, run: Run) -> None:  # noqa: D102
        if len(self.went_on) < len(self.begun):
            self.went_on.append(time.perf_counter())

    def after_step(self, run: Run, result: StepResult) -> None:  # noqa: D102
        self.ends.append(time.perf_counter())

    def before_save(self, run: Run) -> None:  # noqa: D102
        self.begun.append(time.perf_counter())

    def after_save(self, run: Run, path: Path) -> None:  # noqa: D102
        self.safe.append(time.perf_counter())
        if len(self.safe) == self._saves:
            run.stop("all saves are measured")

    def gaps(self) -> tuple[np.ndarray[Any, Any], list[np.ndarray[Any, Any]]]:
        """Return the seconds from step to step: while nothing was saved, and during each save."""
        ends = np.array(self.ends)
        gaps = np.diff(ends)
        calm = np.ones(len(gaps), np.bool_)
        calm[:WARM_UP_STEPS] = False
        during = []
        for begun, safe in zip(self.begun[: self._saves], self.safe[: self._saves], strict=True):
            touched = (ends[1:] > begun) & (ends[:-1] < safe)
            during.append(gaps[touched])
            calm &= ~touched
        return gaps[calm], during


def pause_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Train on full tables and save now and then.

    The pause of a save is the longest time from the end of one step to the end of the next, from the moment the save
    begins until it is safe, less the median of such times while nothing is saved. So it holds the cut (``cut_ms``,
    during which no step runs), and any step that the writing in the background held up.
    """
    workload = Workload(sizes)
    examples = workload.examples()
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        ours = Ours(
            workload,
            examples,
            model_dir=folder,
            save_checkpoints_steps=sizes.steps_between_saves,
            checkpoints_max_to_keep=1,
            keep_checkpoint_every_n_hours=None,
            save_summary_steps=0,
        )
        progress(f"filling {sizes.ids:,} rows")
        ours.fill(workload)
        progress("checkpoint_pause_ms")
        times = StepTimes(sizes.saves)
        steps = (sizes.saves + 1) * sizes.steps_between_saves
        batches = [ours.batches[number % len(ours.batches)] for number in range(steps)]
        ours.estimator.train(batches, steps=steps, hooks=[times], resume_data=False)
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
        ours.estimator.close()
    yield _result(times, size, ours.rows)


def _result(times: StepTimes, size: int, rows: int) -> Result:
    calm, during = times.gaps()
    usual = float(np.median(calm))
    pauses = np.array([1e3 * (float(gaps.max()) - usual) for gaps in during])
    cuts = np.subtract(times.went_on[: len(during)], times.begun[: len(during)])
    extra: dict[str, Any] = {
        "peer_name": "one millisecond, so that the ratio is the figure itself",
        "ratio_low": float(pauses.min()),
        "ratio_high": float(pauses.max()),
        "rows": rows,
        "bytes": size,
        "cut_ms": 1e3 * float(cuts.max()),
        "step_ms": 1e3 * usual,
        "slowest_calm_step_ms": 1e3 * float(calm.max()),
        "step_while_saving_ms": 1e3 * float(np.median(np.concatenate(during))),
        "save_s": float(np.median(np.subtract(times.safe[: len(during)], times.begun[: len(during)]))),
    }
    pause = float(np.median(pauses))
    return Result(
        case="checkpoint_pause_ms", ours=pause, peer=1.0, ratio=pause, unit="ms", rounds=len(pauses), extra=extra
    )
