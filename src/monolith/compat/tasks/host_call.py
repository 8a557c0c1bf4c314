"""``HostCallHook``: metrics of sampled users over windows of steps, written beside the run.

``MetricWindow`` gathers vectors of steps in memory of a fixed size. The hook samples rows by user, and writes the AUC,
the mean label and the mean prediction of each window to ``<model_dir>/host_call`` as summaries. The loop's thread
calls both.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from monolith.core.errors import ConfigError
from monolith.training.hooks import Hook
from monolith.training.hooks.summaries import SummaryFile
from monolith.training.metrics.auc import StreamingAuc
from monolith.training.metrics.prediction_messages import sampled_rows
from monolith.training.metrics.samples import select_values
from monolith.training.run import HeadResult, Run, StepResult

__all__ = ["HostCallHook", "MetricWindow", "accumulate"]


def accumulate(base: Tensor, delta: Tensor, offset: int) -> Tensor:
    """Return ``base`` with ``delta`` added from index ``offset``, as in a ring: indices past the end wrap to the front.

    Shapes: base (N,), delta (n,) with n ≤ N; result (N,).

    >>> accumulate(torch.zeros(5), torch.ones(2), 4).tolist()
    [1.0, 0.0, 0.0, 0.0, 1.0]

    Raises:
        ConfigError: A tensor is not one-dimensional, or ``delta`` is longer than ``base``.
    """
    if base.dim() != 1 or delta.dim() != 1 or len(delta) > len(base):
        raise ConfigError(
            f"shapes are {tuple(base.shape)} and {tuple(delta.shape)}; give two vectors, the second not the longer"
        )
    padded = torch.nn.functional.pad(delta, (0, len(base) - len(delta)))
    return base + padded.roll(offset)


class MetricWindow:
    """Vectors gathered over a window of steps, in memory of a fixed size.

    A window begins with the step after a multiple of ``every_n_steps`` and is complete with the next multiple.

    >>> window = MetricWindow(every_n_steps=2, rows_per_step=3)
    >>> window.add(1, {"label": torch.tensor([1.0, 0.0])})
    False
    >>> window.add(2, {"label": torch.tensor([1.0])})
    True
    >>> window.values()["label"].tolist()
    [1.0, 0.0, 1.0]

    Args:
        every_n_steps: Steps of a window.
        rows_per_step: Most rows that a step adds.
    """

    def __init__(self, every_n_steps: int, rows_per_step: int) -> None:
        if every_n_steps < 1 or rows_per_step < 1:
            raise ConfigError(f"a window has {every_n_steps} steps of {rows_per_step} rows; both must be 1 or more")
        self.every_n_steps = every_n_steps
        self.rows_per_step = rows_per_step
        self.count = 0
        """Rows gathered in this window."""
        self._buffers: dict[str, Tensor] = {}

    def add(self, step: int, rows: Mapping[str, Tensor]) -> bool:
        """Add the rows of a step, all vectors of one length; return whether the window is complete.

        Raises:
            ConfigError: The lengths differ, are too long, or the names are others than before.
        """
        if (step - 1) % self.every_n_steps == 0:
            self._buffers, self.count = {}, 0
        sizes = {name: tuple(vector.shape) for name, vector in rows.items()}
        if len(set(sizes.values())) != 1 or any(vector.dim() != 1 for vector in rows.values()):
            raise ConfigError(f"the rows of step {step} have shapes {sizes}; give vectors of one length")
        if self._buffers and self._buffers.keys() != rows.keys():
            raise ConfigError(f"step {step} gives {sorted(rows)}, steps before {sorted(self._buffers)}; keep the names")
        added = len(next(iter(rows.values())))
        room = self.every_n_steps * self.rows_per_step
        if added > self.rows_per_step or self.count + added > room:
            raise ConfigError(f"step {step} gives {added} rows; a step adds at most {self.rows_per_step}")
        for name, vector in rows.items():
            buffer = self._buffers.get(name)
            start = torch.zeros(room, dtype=vector.dtype, device=vector.device) if buffer is None else buffer
            self._buffers[name] = accumulate(start, vector.detach(), self.count)
        self.count += added
        return step % self.every_n_steps == 0

    def values(self) -> dict[str, Tensor]:
        """Return the vectors gathered in this window."""
        return {name: buffer[: self.count] for name, buffer in self._buffers.items()}


class HostCallHook(Hook):
    """Writes metrics of sampled users over windows of steps to ``<model_dir>/host_call``.

    Tags per head: ``HEAD/window_auc``, ``HEAD/window_label`` and ``HEAD/window_prediction``, which are means, and
    ``HEAD/window_rows``. With ``scalars``, also the mean ``loss`` of the window. A run without a folder writes nothing.

    Args:
        every_n_steps: Steps of a window; 1 writes each step.
        rows_per_step: Most sampled rows of a step.
        sample_ratio: Share of the users, by uid; 1 samples all rows.
        scalars: Whether the loss is written too.
        samples: Whether users are sampled.
    """

    def __init__(
        self,
        *,
        every_n_steps: int = 100,
        rows_per_step: int = 6,
        sample_ratio: float = 0.01,
        scalars: bool = True,
        samples: bool = True,
    ) -> None:
        self._every, self._most, self._ratio = every_n_steps, rows_per_step, sample_ratio
        self._scalars, self._samples = scalars, samples
        self._windows: dict[str, MetricWindow] = {}
        self._losses: list[float] = []
        self._file: SummaryFile | None = None

    @override
    def on_start(self, run: Run) -> None:
        self._windows, self._losses = {}, []
        self._file = SummaryFile(run.model_dir / "host_call", clock=run.clock) if run.config.model_dir else None

    @override
    def after_step(self, run: Run, result: StepResult) -> None:
        if self._file is None:
            return
        scalars: dict[str, float] = {}
        if self._scalars:
            self._losses.append(result.loss)
        if self._samples:
            rows = sampled_rows(result.batch.uid, self._ratio)[: self._most]
            for head in result.heads.values():
                if head.label is not None and self._add(head, rows, result.step):
                    scalars |= _summarize(head.name, self._windows[head.name].values())
        if result.step % self._every == 0:
            if self._losses:
                scalars["loss"] = float(np.mean(self._losses))
            self._losses = []
            self._file.scalars(scalars, result.step)

    def _add(self, head: HeadResult, rows: NDArray[np.int64], step: int) -> bool:
        assert head.label is not None
        if head.mask is not None:
            rows = rows[np.asarray(head.mask)[rows].astype(bool)]
        window = self._windows.setdefault(head.name, MetricWindow(self._every, self._most))
        vectors = {"label": torch.tensor(head.label[rows]), "prediction": torch.tensor(head.predictions[rows])}
        return window.add(step, vectors)

    @override
    def on_end(self, run: Run, error: BaseException | None) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _summarize(head: str, values: Mapping[str, Tensor]) -> dict[str, float]:
    label, prediction = values["label"].numpy(), values["prediction"].numpy()
    scalars = {f"{head}/window_rows": float(len(label))}
    if len(label):
        auc = StreamingAuc()
        auc.add(select_values(prediction, label, head=head))
        scalars |= {
            f"{head}/window_auc": auc.result(),
            f"{head}/window_label": float(label.mean()),
            f"{head}/window_prediction": float(prediction.mean()),
        }
    return scalars
