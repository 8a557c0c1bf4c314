"""The layouts of a step as tensors of torch.

``embed`` reads all layouts by one function of autograd. After ``backward``, the ``grad`` of a row tensor is the
gradient to push to the store.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from monolith import _native
from monolith.embedding.autograd import read_tensors
from monolith.features.embedder import EmbeddedBatch, Embedder, PulledBatch

__all__ = ["Embedded", "embed"]


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """A batch for ``forward``, and the row tensors that receive its gradient."""

    batch: EmbeddedBatch
    plan: _native.StepPlan
    rows: list[Tensor]
    """Per table, (U, D); ``grad`` is set by ``backward``, or None when no layout was used."""
    squares: list[float]
    """Per table: the sum of squares of its gradient, set by ``backward``."""


class _LayoutSource:
    """Fills the tensors of all layouts; their gradients become the ``grad`` of the rows."""

    has_optional_gradients = True

    def __init__(self, embedder: Embedder, pulled: PulledBatch) -> None:
        self._widths = [each.width for each in embedder.tensors]
        self._read = pulled.read
        self.rows = [torch.as_tensor(each) for each in pulled.rows]
        self.squares: list[float] = []

    def read(self) -> Sequence[Tensor]:
        outputs = [torch.empty((self._read.plan.rows, width)) for width in self._widths]
        self._read.pool([each.numpy() for each in self.rows], [each.numpy() for each in outputs])
        return outputs

    def take_gradients(self, grads: Sequence[Tensor | None]) -> None:
        arrays = [None if each is None else each.contiguous().numpy() for each in grads]
        sums = [torch.empty_like(each) for each in self.rows]
        self.squares[:] = self._read.sum_gradients(arrays, [each.numpy() for each in sums])
        for each, gradient in zip(self.rows, sums, strict=True):
            each.grad = gradient if each.grad is None else each.grad + gradient


def embed(
    embedder: Embedder, pulled: PulledBatch, *, device: torch.device | str = "cpu", needs_grad: bool = True
) -> Embedded:
    """Return a batch with the tensors of all layouts, all on ``device``."""
    source = _LayoutSource(embedder, pulled)
    flat: Sequence[Tensor] = ()
    if embedder.tensors:
        flat = read_tensors(source, torch.zeros(0, requires_grad=needs_grad))
    filled = iter(
        each.reshape(-1, *tensor.shape).to(device) for each, tensor in zip(flat, embedder.tensors, strict=True)
    )
    layouts: dict[str, Any] = {}
    for name, count, is_list in embedder.layouts:
        tensors = list(itertools.islice(filled, count))
        layouts[name] = tensors if is_list else tensors[0]
    batch = pulled.batch.as_torch() if str(device) == "cpu" else pulled.batch.to(device)
    return Embedded(EmbeddedBatch.of(batch, layouts), pulled.plan, source.rows, source.squares)
