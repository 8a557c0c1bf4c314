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


class _LayoutSource:
    """Fills the tensors of all layouts; their gradients become the ``grad`` of the rows."""

    has_optional_gradients = True

    def __init__(self, pulled: PulledBatch) -> None:
        self._read = pulled.read
        self.rows = [each.detach() for each in pulled.rows]
        self.squares = torch.zeros(len(self.rows), dtype=torch.float64)  # no row has a part in the loss

    def read(self) -> Sequence[Tensor]:
        return self._read.pool()

    def take_gradients(self, grads: Sequence[Tensor | None]) -> None:
        sums, self.squares = self._read.sum_gradients(grads)
        for each, gradient in zip(self.rows, sums, strict=True):
            each.grad = gradient if each.grad is None else each.grad + gradient


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """A batch for ``forward``, and the row tensors that receive its gradient."""

    batch: EmbeddedBatch
    plan: _native.StepPlan
    _source: _LayoutSource

    @property
    def rows(self) -> list[Tensor]:
        """Per table, (U, D); ``grad`` is set by ``backward``, or None when no layout was used."""
        return self._source.rows

    @property
    def squares(self) -> Tensor:
        """Per table: the sum of squares of its gradient, set by ``backward``; float64."""
        return self._source.squares


def embed(
    embedder: Embedder, pulled: PulledBatch, *, device: torch.device | str = "cpu", needs_grad: bool = True
) -> Embedded:
    """Return a batch with the tensors of all layouts, all on ``device``."""
    source = _LayoutSource(pulled)
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
    batch = pulled.batch.as_torch() if str(device) == "cpu" else pulled.batch.to(device, non_blocking=True)
    return Embedded(EmbeddedBatch.of(batch, layouts), pulled.plan, source)
