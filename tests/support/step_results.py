"""Steps and runs by hand, for tests of metrics and hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from monolith.core.clock import Clock
from monolith.data import Batch
from monolith.embedding import EmbeddingStore, MultiTable, Sgd, SliceSpec, TableSpec
from monolith.testing import FakeClock
from monolith.training.hooks import HeadResult, StepResult


def head_result(
    name: str, predictions: Sequence[float], label: Sequence[float] | None, is_classification: bool = True, **more: Any
) -> HeadResult:
    return HeadResult(
        name=name,
        predictions=np.array(predictions, np.float32),
        label=None if label is None else np.array(label, np.float32),
        mask=more.get("mask"),
        weight=more.get("weight"),
        is_classification=is_classification,
    )


def step_result(
    step: int = 1,
    predictions: Sequence[float] = (0.25, 0.75),
    label: Sequence[float] | None = (0, 1),
    *,
    loss: float = 1.0,
    heads: Mapping[str, HeadResult] | None = None,
    batch: Batch | None = None,
) -> StepResult:
    heads = {"ctr": head_result("ctr", predictions, label)} if heads is None else heads
    size = len(next(iter(heads.values())).predictions)
    return StepResult(
        step=step,
        loss=loss,
        heads=heads,
        batch=Batch.from_arrays(label=[[0.0]] * size) if batch is None else batch,
        samples=size,
        ids=10 * size,
        seconds=0.5,
    )


class FakeRun:
    """What hooks see of a run that nobody runs."""

    def __init__(self, model_dir: Path, clock: Clock | None = None, store: EmbeddingStore | None = None) -> None:
        self.step = 0
        self.model_dir = model_dir
        self.config: Any = None
        self.model: Any = None
        self.clock = clock or FakeClock()
        self.store: Any = store or MultiTable([TableSpec("item", [SliceSpec(2, optimizer=Sgd(learning_rate=1.0))])])
        self.is_paused = False
        self.clamped_event_times = 0

    def stop(self, reason: str) -> None:
        raise AssertionError(f"nobody asked to stop: {reason}")

    def save(self, reason: str) -> Path:
        raise AssertionError(f"nobody asked to save: {reason}")

    def pause(self) -> bool:
        raise AssertionError("nobody asked to pause")

    def resume(self) -> None:
        raise AssertionError("nobody asked to resume")
