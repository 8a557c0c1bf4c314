"""``read_tensors``: a read of rows as one function of autograd, for ``mt.Model`` and the modules of ``mt.nn``.

Rows are not parameters. Outputs require a gradient because of an empty anchor, and ``backward`` hands the gradients of
the outputs to the source of the read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["TensorSource", "read_tensors"]


class TensorSource(Protocol):
    """One read of rows, and the place for its gradients."""

    has_optional_gradients: bool
    """Whether ``take_gradients`` gets None for outputs without a part in the loss, instead of zeros."""

    def read(self) -> Sequence[Tensor]:
        """Return the outputs."""
        ...

    def take_gradients(self, grads: Sequence[Any]) -> None:
        """Receive the gradients of the outputs, in ``backward``."""
        ...


def read_tensors(source: TensorSource, anchor: Tensor, inputs: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
    """Return the outputs of a source; they require a gradient if the anchor does.

    Args:
        source: The read.
        anchor: An empty tensor.
        inputs: Tensors that the source read; ``backward`` raises where one of them was changed in place.
    """
    outputs: tuple[Tensor, ...] = _Read.apply(anchor, source, *inputs)  # type: ignore[no-untyped-call]
    return outputs


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, source: TensorSource, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.source = source
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(not source.has_optional_gradients)
        return tuple(source.read())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, ...]:
        inputs = ctx.saved_tensors  # raises where one was changed in place
        ctx.source.take_gradients(grads)
        return None, None, *[None] * len(inputs)
