"""A slice that counts how often an id was trained on. The counting is done by the gradient that this function sends."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from monolith.layers._arguments import check_number

__all__ = ["fid_counter"]


class _Count(torch.autograd.Function):
    @staticmethod
    def forward(counter: Tensor, threshold: float, step: float) -> Tensor:
        return torch.clamp(counter + step, max=threshold)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, float], output: Tensor) -> None:
        counter, ctx.threshold, ctx.step = inputs
        ctx.save_for_backward(counter)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        (counter,) = ctx.saved_tensors
        going_up = torch.full_like(counter, -ctx.step)
        return torch.where(counter >= ctx.threshold, torch.zeros_like(counter), going_up), None, None


def fid_counter(counter: Tensor, counter_threshold: float, step: float = 1.0) -> Tensor:
    """Return min(counter + step, threshold); the gradient to ``counter`` is −step, or 0 from the threshold on.

    That gradient does not depend on the loss, so a slice with the optimizer ``Sgd(1.0)`` grows by ``step`` at each
    update of its row. Shapes: any; the result is the same.

    >>> counter = torch.tensor([1.0, 1000.0], requires_grad=True)
    >>> fid_counter(counter, 1000.0).sum().backward()
    >>> counter.grad.tolist()
    [-1.0, 0.0]
    """
    check_number("counter_threshold", counter_threshold)
    check_number("step", step, above=0.0)
    counted: Tensor = _Count.apply(counter, counter_threshold, step)  # type: ignore[no-untyped-call]
    return counted
