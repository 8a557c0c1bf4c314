"""The layouts of a step as tensors of torch.

``embed`` reads all layouts by one function of autograd. After ``backward``, ``Embedded`` has the gradients to push to
the store.
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
    """Fills the tensors of all layouts; keeps the gradients of the rows."""

    has_optional_gradients = True

    def __init__(self, pulled: PulledBatch) -> None:
        self._read = pulled.read
        self.gradients: Sequence[Tensor] | None = None
        self.squares: Tensor | Sequence[float] = ()

    def read(self) -> Sequence[Tensor]:
        return self._read.pool()

    def take_gradients(self, grads: Sequence[Tensor | None]) -> None:
        self.gradients, self.squares = self._read.sum_gradients(grads)


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """A batch for ``forward``, and the gradients of its rows after ``backward``."""

    batch: EmbeddedBatch
    plan: _native.StepPlan
    _source: _LayoutSource

    @property
    def gradients(self) -> Sequence[Tensor] | None:
        """Per table, (U, D), of the last ``backward``; None when no layout has a part in the loss."""
        return self._source.gradients

    @property
    def squares(self) -> Tensor | Sequence[float]:
        """Per table: the sum of squares of its gradient; empty when there are no gradients."""
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
