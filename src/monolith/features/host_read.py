"""``HostReader``: reads whose rows and layouts are in host memory, as tensors of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from monolith import _native
from monolith.embedding.planned_read import PlannedRead
from monolith.embedding.store import Ids, Rows, RowStore
from monolith.embedding.wiring import Wiring

__all__ = ["HostRead", "HostReader"]


class HostReader:
    """Makes the reads of one model against any store.

    Args:
        store: Owner of the rows.
        wiring: The tables and outputs of the model.
    """

    def __init__(self, store: RowStore, wiring: Wiring) -> None:
        self._store, self._wiring = store, wiring

    def read(self, plan: _native.StepPlan, *, before_push: bool) -> HostRead:
        """Pull the rows of a plan, by one call of the store; see ``PlannedRead.pull``."""
        read = PlannedRead(self._store, plan, self._wiring.tables)
        return HostRead(read, read.pull(before_push=before_push), self._wiring.widths)


class HostRead:
    """A ``LayoutRead`` in host memory."""

    def __init__(self, read: PlannedRead, rows: Sequence[Rows], widths: Sequence[int]) -> None:
        self._read, self._rows, self._widths = read, rows, widths
        self.rows = [torch.as_tensor(each) for each in rows]

    @property
    def plan(self) -> _native.StepPlan:
        """The distinct ids of the batch, and where each of them occurs."""
        return self._read.plan

    def pool(self) -> list[Tensor]:
        """Return all outputs, (B, W) each."""
        outputs = [torch.empty((self.plan.rows, width)) for width in self._widths]
        self._read.pool(self._rows, [each.numpy() for each in outputs])
        return outputs

    def sum_gradients(self, grads: Sequence[Tensor | None]) -> tuple[list[Tensor], Tensor]:
        """Return the gradient of each distinct id per table, and the sums of squares per table."""
        arrays = [None if each is None else each.contiguous().numpy() for each in grads]
        sums = [np.empty_like(each) for each in self._rows]
        squares = self._read.sum_gradients(arrays, sums)
        return [torch.from_numpy(each) for each in sums], torch.tensor(squares, dtype=torch.float64)

    def push(
        self, grads: Sequence[Tensor], *, time_s: int, step: int, dropped: Mapping[str, Ids] | None = None
    ) -> None:
        """Take one optimizer step per distinct id, by one call of the store."""
        rows = [each.contiguous().numpy() for each in grads]
        self._read.push(rows, time_s=time_s, step=step, dropped=dropped)
