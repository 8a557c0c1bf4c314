"""``GpuReader``: the reads of a model whose rows are on a GPU. Rows, layouts and gradients never visit the host.

The host plans a batch and copies the plan to the GPU. No call waits for the GPU, except for tables that do; see
``GpuTable``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from monolith import _native
from monolith.embedding.store import Ids
from monolith.nn.gpu.device import GpuDevice
from monolith.nn.gpu.layouts import GpuLayouts, GpuPlan

if TYPE_CHECKING:
    from monolith.nn.gpu.store import GpuStore

__all__ = ["GpuRead", "GpuReader"]


class GpuReader:
    """Makes the reads of one model.

    Args:
        store: Owner of the rows.
        layouts: The layouts of the model.
        device: The GPU.
    """

    def __init__(self, store: GpuStore, layouts: GpuLayouts, device: GpuDevice) -> None:
        self._store, self._layouts, self._device = store, layouts, device

    def read(self, plan: _native.StepPlan, *, before_push: bool) -> GpuRead:
        """Copy a plan to the GPU, and read its rows there."""
        return GpuRead(self._store, self._layouts, self._device, plan)


class GpuRead:
    """A ``LayoutRead`` on a GPU."""

    def __init__(self, store: GpuStore, layouts: GpuLayouts, device: GpuDevice, plan: _native.StepPlan) -> None:
        self._store, self._layouts, self._device = store, layouts, device
        self.plan = plan
        self._on_gpu: GpuPlan = layouts.upload(plan)
        self._flat, self.rows = self._on_gpu.make_rows()
        self._places = dict(zip(self._on_gpu.tables, store.read_plan(self._on_gpu, self.rows), strict=True))

    def pool(self) -> list[Tensor]:
        """Return all outputs, (B, W) each."""
        return self._layouts.fill(self._on_gpu, self._flat)

    def sum_gradients(self, grads: Sequence[Tensor | None]) -> tuple[list[Tensor], Tensor]:
        """Return the gradient of each distinct id per table, and the sums of squares per table."""
        return self._layouts.sum(self._on_gpu, grads)

    def push(
        self, grads: Sequence[Tensor], *, time_s: int, step: int, dropped: Mapping[str, Ids] | None = None
    ) -> None:
        """Take one optimizer step per distinct id."""
        places, rows = dict(self._places), dict(zip(self._places, grads, strict=True))
        counts: dict[str, Tensor] = {}
        for number, name in enumerate(self._places):
            blocked = (dropped or {}).get(name, ())
            kept = np.flatnonzero(np.isin(self.plan.ids(number), blocked, invert=True)) if len(blocked) else None
            if self._store[name].has_admission:
                sightings = self.plan.counts(number).astype(np.int64)
                counts[name] = torch.from_numpy(sightings if kept is None else sightings[kept])
            if kept is not None:
                chosen = self._device.upload(kept)
                places[name] = places[name].pick(chosen)
                rows[name] = rows[name][chosen]
        self._store.push_distinct(places, rows, counts, time_s=time_s, step=step)
