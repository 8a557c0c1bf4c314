"""The seam between the training loop and the code beside it: hooks, metrics, the controller.

``Run`` is the view that a hook has of the loop. ``StepResult`` and ``HeadResult`` are plain values of one finished
step. This module imports no other module of ``monolith.training``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from monolith.core.clock import Clock
    from monolith.data import Batch
    from monolith.embedding import EmbeddingStore

__all__ = ["HeadResult", "Mark", "Run", "StepResult", "no_position"]

Floats = NDArray[np.float32]

Mark = Callable[[], Any]
"""Returns the position in the data behind a batch, as JSON; None where the data has no positions."""


def no_position() -> None:
    """Return None: the ``Mark`` of data without positions."""
    return


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadResult:
    """Predictions and labels of one head for one batch, from before the step learned from the batch."""

    name: str
    predictions: Floats
    """(B,): probabilities of a classification head, values of a regression head."""
    label: Floats | None
    """(B,), or None when the head has no label."""
    mask: NDArray[np.bool_] | None
    """(B,): rows whose label is there; None = all."""
    weight: Floats | None
    """(B,); None = 1 each."""
    is_classification: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One finished step.

    Ranks that step together report the loss, samples and ids of all ranks, with their own heads and batch.
    """

    step: int
    """Steps finished, this one included."""
    loss: float
    """The loss per example: the sum of head losses, extra losses and layer losses, divided by ``samples``."""
    heads: Mapping[str, HeadResult]
    batch: Batch
    samples: int
    ids: int
    """Occurrences of ids in the batch, of all features of the model."""
    seconds: float = 0.0
    """Time from the end of the previous step to the end of this one."""
    mark: Mark = no_position
    """Returns the position in the data behind the batch."""

    @property
    def has_labels(self) -> bool:
        """True if any row has a label, or no head needs one."""
        heads = [head for head in self.heads.values() if head.label is not None]
        return not heads or any(head.mask is None or bool(head.mask.any()) for head in heads)


class Run(Protocol):
    """The run that a hook is attached to: its state, and the requests that a hook may make."""

    @property
    def step(self) -> int:
        """Steps finished, over all runs of the model folder."""
        ...

    @property
    def model_dir(self) -> Path:
        """The run's folder."""
        ...

    @property
    def config(self) -> Any:
        """The ``RunConfig``."""
        ...

    @property
    def model(self) -> Any:
        """The ``Model`` in training."""
        ...

    @property
    def store(self) -> EmbeddingStore:
        """The store that holds the model's rows."""
        ...

    @property
    def clock(self) -> Clock:
        """The run's clock."""
        ...

    def stop(self, reason: str) -> None:
        """End the run after the current step, with a final checkpoint. Call it from any thread."""
        ...

    def save(self, reason: str) -> Path:
        """Write a checkpoint of the next step boundary; return its folder once durable. Call it from another thread."""
        ...

    def pause(self) -> bool:
        """Pause the loop at the next step boundary; return False if a pause is active. Call it from any thread."""
        ...

    def resume(self) -> None:
        """Resume the loop. Call it from any thread."""
        ...

    def between_steps(self) -> AbstractContextManager[None]:
        """Keep the loop between two steps, with all earlier updates applied. Call it from any thread."""
        ...

    def place(self) -> Any:
        """Return the position in the data behind the last step, as JSON; None where the data has none."""
        ...

    @property
    def data_ended(self) -> bool:
        """Whether the run has trained on the data to its end."""
        ...

    @property
    def clamped_event_times(self) -> int:
        """Records of this run whose event time was too far ahead of the clock."""
        ...

    @property
    def stop_reason(self) -> str | None:
        """Why the run ends before its data and its steps do; None while no stop is requested."""
        ...

    @property
    def is_paused(self) -> bool:
        """Whether the loop waits at a step boundary because of ``pause``."""
        ...
