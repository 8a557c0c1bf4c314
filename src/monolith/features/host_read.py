"""``HostReader``: reads whose rows and layouts are in host memory, as tensors of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

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


class _Rows(Sequence[Tensor]):
    """Arrays as tensors: a tensor is made when it is read, because most steps read none."""

    def __init__(self, arrays: Sequence[Rows]) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays)

    @overload
    def __getitem__(self, place: int) -> Tensor: ...
    @overload
    def __getitem__(self, place: slice) -> list[Tensor]: ...
    def __getitem__(self, place: int | slice) -> Tensor | list[Tensor]:
        if isinstance(place, slice):
            return [torch.as_tensor(each) for each in self.arrays[place]]
        return torch.as_tensor(self.arrays[place])


class HostRead:
    """A ``LayoutRead`` in host memory."""

    def __init__(self, read: PlannedRead, rows: Sequence[Rows], widths: Sequence[int]) -> None:
        self._read, self._rows, self._widths = read, rows, widths

    @property
    def plan(self) -> _native.StepPlan:
        """The distinct ids of the batch, and where each of them occurs."""
        return self._read.plan

    @property
    def rows(self) -> Sequence[Tensor]:
        """Per table in name order, (U, D)."""
        return _Rows(self._rows)

    def pool(self) -> list[Tensor]:
        """Return all outputs, (B, W) each."""
        outputs = [torch.empty((self.plan.rows, width)) for width in self._widths]
        self._read.pool(self._rows, [each.numpy() for each in outputs])
        return outputs

    def sum_gradients(self, grads: Sequence[Tensor | None]) -> tuple[Sequence[Tensor], Sequence[float]]:
        """Return the gradient of each distinct id per table, and the sums of squares per table."""
        arrays = [None if each is None else each.contiguous().numpy() for each in grads]
        sums = [np.empty_like(each) for each in self._rows]
        squares = self._read.sum_gradients(arrays, sums)
        return _Rows(sums), squares

    def push(
        self, grads: Sequence[Tensor], *, time_s: int, step: int, dropped: Mapping[str, Ids] | None = None
    ) -> None:
        """Take one optimizer step per distinct id, by one call of the store."""
        arrays = grads.arrays if isinstance(grads, _Rows) else [each.contiguous().numpy() for each in grads]
        self._read.push(arrays, time_s=time_s, step=step, dropped=dropped)
