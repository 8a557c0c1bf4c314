"""The embedding path for torch: one autograd function for all layouts of a step.

Forward fills every layout in one call of the embedder; backward sums their gradients per unique id in another. Rows are
leaf tensors, so after ``backward`` the ``grad`` of a row tensor is the gradient to push to the store.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from monolith import _native
from monolith.features.embedder import EmbeddedBatch, Embedder, PulledBatch

__all__ = ["Embedded", "embed"]


class _FillLayouts(torch.autograd.Function):
    """Maps rows of all tables to the tensors of all layouts."""

    @staticmethod
    def forward(ctx: Any, embedder: Embedder, plan: _native.StepPlan, squares: list[float], *rows: Tensor) -> Any:
        outputs = [
            torch.empty((plan.rows, each.width), dtype=torch.float32, device=embedder.device)
            for each in embedder.tensors
        ]
        embedder.fill(plan, rows, outputs)
        ctx.embedder, ctx.plan, ctx.shapes, ctx.squares = embedder, plan, [each.shape for each in rows], squares
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        rows = [torch.empty(shape, dtype=torch.float32, device=ctx.embedder.device) for shape in ctx.shapes]
        ctx.squares[:] = ctx.embedder.scatter(ctx.plan, grads, rows)
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
    """Return a batch with the tensors of all layouts, all on ``device``."""
    rows = [torch.as_tensor(each).requires_grad_(needs_grad) for each in pulled.rows]
    squares: list[float] = []
    flat: tuple[Tensor, ...] = ()
    if embedder.tensors:
        flat = _FillLayouts.apply(embedder, pulled.plan, squares, *rows)  # type: ignore[no-untyped-call]
    filled = iter(
        each.reshape(-1, *tensor.shape).to(device) for each, tensor in zip(flat, embedder.tensors, strict=True)
    )
    layouts: dict[str, Any] = {}
    for name, count, is_list in embedder.layouts:
        tensors = list(itertools.islice(filled, count))
        layouts[name] = tensors if is_list else tensors[0]
    batch = pulled.batch.as_torch() if str(device) == "cpu" else pulled.batch.to(device)
    return Embedded(EmbeddedBatch.of(batch, layouts), pulled.plan, rows, squares)
