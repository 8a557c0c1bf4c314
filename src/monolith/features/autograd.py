"""The embedding path in torch: one autograd function for all layouts of a step.

Forward fills every layout in one native call; backward sums all their gradients per unique id in another. Rows are leaf
tensors, so after ``backward`` a row tensor's ``grad`` is the gradient to push to the store.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from monolith import _native
from monolith.features.embedder import EmbeddedBatch, Embedder, PulledBatch

__all__ = ["Embedded", "embed"]


class _FillLayouts(torch.autograd.Function):
    """Maps the rows of all tables to the tensors of all layouts."""

    @staticmethod
    def forward(ctx: Any, plan: _native.StepPlan, widths: Sequence[int], squares: list[float], *rows: Tensor) -> Any:
        outputs = [torch.empty((plan.rows, width), dtype=torch.float32) for width in widths]
        plan.pool([each.numpy() for each in rows], [each.numpy() for each in outputs])
        ctx.plan, ctx.shapes, ctx.squares = plan, [each.shape for each in rows], squares
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        arrays = [None if each is None else each.contiguous().numpy() for each in grads]
        rows = [torch.empty(shape, dtype=torch.float32) for shape in ctx.shapes]
        ctx.squares[:] = ctx.plan.scatter(arrays, [each.numpy() for each in rows])
        return None, None, None, *rows


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """A batch for ``forward``, and the leaf tensors that receive its gradient."""

    batch: EmbeddedBatch
    plan: _native.StepPlan
    rows: list[Tensor]
    """Per table, (U, D); ``grad`` is set by ``backward``, or None when no layout was used."""
    squares: list[float]
    """Per table: the sum of squares of its gradient, set by ``backward``."""


def embed(
    embedder: Embedder, pulled: PulledBatch, *, device: torch.device | str = "cpu", needs_grad: bool = True
) -> Embedded:
    """Turn pulled rows into the tensors of all layouts, and the batch into torch tensors on ``device``."""
    rows = [torch.from_numpy(each).requires_grad_(needs_grad) for each in pulled.rows]
    squares: list[float] = []
    widths = [tensor.width for tensor in embedder.tensors]
    flat = _FillLayouts.apply(pulled.plan, widths, squares, *rows) if widths else ()  # type: ignore[no-untyped-call]
    filled = iter(
        each.reshape(-1, *tensor.shape).to(device) for each, tensor in zip(flat, embedder.tensors, strict=True)
    )
    layouts: dict[str, Any] = {}
    for name, count, is_list in embedder.layouts:
        own = list(itertools.islice(filled, count))
        layouts[name] = own if is_list else own[0]
    batch = pulled.batch.as_torch() if str(device) == "cpu" else pulled.batch.to(device)
    return Embedded(EmbeddedBatch.of(batch, layouts), pulled.plan, rows, squares)
