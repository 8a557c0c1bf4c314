"""The seam between the training loop and what runs beside it.

The loop calls every hook in the order given (``on_end`` in reverse) from its own thread. An exception of a hook ends
the run like any other, except in ``on_end``: there every hook gets its turn first.
"""

from __future__ import annotations

from collections.abc import Mapping
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

__all__ = ["HeadResult", "Hook", "Run", "StepResult"]

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadResult:
    """What one head said about one batch, before it learnt from it."""

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
    """One finished step."""

    step: int
    """Steps finished, this one included."""
    loss: float
    """The loss per example: heads, extra losses and layer losses added up, over the size of the batch."""
    heads: Mapping[str, HeadResult]
    batch: Batch
    samples: int
    ids: int
    """Occurrences of ids in the batch, of all features of the model."""
    seconds: float
    """From the end of the step before to the end of this one."""


class Run(Protocol):
    """What a hook may see of the run it is attached to, and ask of it."""

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
        """The ``Model`` that is trained."""
        ...

    @property
    def store(self) -> EmbeddingStore:
        """Where its rows are."""
        ...

    @property
    def clock(self) -> Clock:
        """The run's clock."""
        ...

    def stop(self, reason: str) -> None:
        """End the run after the step under way, with a final checkpoint; from any thread."""
        ...

    def save(self, reason: str) -> Path:
        """Write a checkpoint of the next step boundary and return its folder when it is safe; from another thread."""
        ...

    def pause(self) -> bool:
        """Hold the loop at the next step boundary; False when it is held already. From any thread."""
        ...

    def resume(self) -> None:
        """Let the loop go on. From any thread."""
        ...

    def between_steps(self) -> AbstractContextManager[None]:
        """Hold the loop between two steps, with everything of the steps before applied. From any thread."""
        ...

    def place(self) -> Any:
        """Return the place in the data behind the last step, as JSON; None where the data has none."""
        ...

    @property
    def data_ended(self) -> bool:
        """Whether the data was trained on to its end."""
        ...

    @property
    def clamped_event_times(self) -> int:
        """Records of this run whose event time was too far ahead of the clock."""
        ...

    @property
    def stop_reason(self) -> str | None:
        """Why the run ends before its data and its steps do; None while it does not."""
        ...

    @property
    def is_paused(self) -> bool:
        """Whether the loop stands still at a step boundary because of ``pause``."""
        ...


class Hook:
    """Something that runs beside the loop. Override what you need."""

    def on_start(self, run: Run) -> None:
        """Before the first step, after a checkpoint was restored."""

    def before_step(self, run: Run) -> None:
        """Before each step's forward pass."""

    def after_step(self, run: Run, result: StepResult) -> None:
        """After each step was applied."""

    def before_save(self, run: Run) -> None:
        """Before a checkpoint's state is taken."""

    def after_save(self, run: Run, path: Path) -> None:
        """After a checkpoint is safe on disk; called by the loop's thread at the next step boundary."""

    def before_end(self, run: Run) -> None:
        """After the last step, before its checkpoint; not called when the run failed."""

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """After the last step and its checkpoint; ``error`` is what ended the run, or None."""
