"""``LayoutRead``: the rows of one batch as the tensors of a model's layouts, and the update that may follow.

``HostRead`` works in host memory, for any store. A ``LayoutStore`` makes its own reads: its rows, layouts and gradients
stay on its device. This module does not import torch: tensors are duck-typed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from monolith import _native
from monolith.embedding.store import Ids
from monolith.embedding.wiring import Wiring

__all__ = ["LayoutRead", "LayoutReader", "LayoutStore"]

Tensor = Any
"""A ``torch.Tensor``."""


class LayoutRead(Protocol):
    """The rows of a plan, as they were when pulled. One thread at a time uses a read.

    Shapes: B = examples, W = width of an output, U = distinct ids of a table, D = width of its rows.
    """

    @property
    def plan(self) -> _native.StepPlan:
        """The distinct ids of the batch, and where each of them occurs."""
        ...

    @property
    def rows(self) -> Sequence[Tensor]:
        """Per table in name order, (U, D)."""
        ...

    def pool(self) -> Sequence[Tensor]:
        """Return all outputs, (B, W) each."""
        ...

    def sum_gradients(self, grads: Sequence[Tensor | None]) -> tuple[Sequence[Tensor], Tensor | Sequence[float]]:
        """Return the gradient of each distinct id, (U, D) per table, and the sums of squares per table.

        Args:
            grads: Per output, (B, W); None = zero.

        Returns:
            The gradients, and the sums: numbers, or a tensor of float64 on the device of the rows.
        """
        ...

    def push(
        self, grads: Sequence[Tensor], *, time_s: int, step: int, dropped: Mapping[str, Ids] | None = None
    ) -> None:
        """Take one optimizer step per distinct id, by one call of the store.

        Args:
            grads: Per table, (U, D).
            time_s: Event time of the batch.
            step: Number of the batch.
            dropped: Ids by table whose updates are left out.
        """
        ...


class LayoutReader(Protocol):
    """Makes the reads of one model."""

    def read(self, plan: _native.StepPlan, *, before_push: bool) -> LayoutRead:
        """Pull the rows of a plan; ``before_push`` prepares their update."""
        ...


@runtime_checkable
class LayoutStore(Protocol):
    """A store that fills layouts itself, because its rows are not in host memory."""

    def open_layouts(self, wiring: Wiring) -> LayoutReader:
        """Return the reader of a model."""
        ...
