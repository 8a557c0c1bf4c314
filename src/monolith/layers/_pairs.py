"""``sum_pairs``: the products of all pairs of vectors, summed, with few passes over the vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from monolith import _native

__all__ = ["sum_pairs"]


def sum_pairs(x: Tensor, pooled: bool) -> tuple[Tensor, Tensor]:
    """Return the sum of the products of all pairs, (B, k) or (B, 1) when ``pooled``, and x, (B, n, k).

    Further uses of the returned x add nothing to the gradient's cost: one pass sums all of it.
    """
    if torch.compiler.is_compiling():  # a compiler fuses the formula and derives its gradient
        pairs = 0.5 * (x.sum(dim=1).square() - x.square().sum(dim=1))
        return (pairs.sum(dim=1, keepdim=True) if pooled else pairs), x
    pairs, _, same = _SumPairs.apply(x, pooled)  # type: ignore[no-untyped-call]
    return pairs, same


class _SumPairs(torch.autograd.Function):
    """Half of the squared sum of the vectors less the sum of their squares; the sum; and the vectors.

    The gradient of the pairs is g ∘ (Σ x_j − x_i). The sum is an output, so that a second derivative reaches it.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, pooled: bool) -> tuple[Tensor, Tensor, Tensor]:
        if _is_for_engine(x):
            pairs, together = _sum_in_engine(x)
            return (pairs.sum(dim=1, keepdim=True) if pooled else pairs), together, x.view_as(x)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        together = wide.sum(dim=1)
        if pooled:  # a norm writes no squares
            pairs = together.square().sum(dim=1) - torch.linalg.vector_norm(wide, dim=(1, 2)).square()
            pairs = pairs.unsqueeze(1)
        else:
            pairs = together.square() - wide.square().sum(dim=1)
        return (0.5 * pairs).to(x.dtype), together, x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, bool], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[0], output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor | None, grad_together: Tensor | None, others: Tensor | None
    ) -> tuple[Tensor | None, None]:
        x, together = ctx.saved_tensors
        if grad_together is not None:
            direct = grad_together.to(x.dtype).unsqueeze(1).expand_as(x)
            others = direct if others is None else direct + others
        if grad is None:
            return others, None
        if _is_for_engine(x) and not torch.is_grad_enabled():
            return _derive_in_engine(x, together, grad, others), None
        grad = grad.unsqueeze(1)
        result = torch.addcmul(grad * together.to(x.dtype).unsqueeze(1), grad, x, value=-1)
        return (result if others is None else result + others), None


def _is_for_engine(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.float32


def _array(x: Tensor) -> NDArray[np.float32]:
    return x.detach().contiguous().numpy()


# Operators of torch, so that its tracers and transforms see them.


@torch.library.custom_op("monolith::sum_pairs", mutates_args=(), device_types="cpu")
def _sum_in_engine(x: Tensor) -> tuple[Tensor, Tensor]:
    pairs, together = _empty_sums(x)
    with _native.TorchThreads(torch.get_num_threads()):
        _native.sum_pairs(_array(x), together.numpy(), pairs.numpy())
    return pairs, together


@torch.library.custom_op("monolith::pair_gradients", mutates_args=(), device_types="cpu")
def _derive_in_engine(x: Tensor, together: Tensor, grad: Tensor, others: Tensor | None) -> Tensor:
    result = x.new_empty(x.shape)
    with _native.TorchThreads(torch.get_num_threads()):
        _native.pair_gradients(
            _array(x),
            _array(together),
            _array(grad.expand_as(together)),
            None if others is None else _array(others),
            result.numpy(),
        )
    return result


@_sum_in_engine.register_fake
def _empty_sums(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty((x.shape[0], x.shape[2])), x.new_empty((x.shape[0], x.shape[2]))


@_derive_in_engine.register_fake
def _empty_gradient(x: Tensor, together: Tensor, grad: Tensor, others: Tensor | None) -> Tensor:
    return torch.empty_like(x)


@_sum_in_engine.register_vmap
def _sum_batched(info: Any, dims: tuple[int], x: Tensor) -> tuple[tuple[Tensor, ...], tuple[int, int]]:
    x = x.movedim(dims[0], 0)
    return tuple(each.reshape(*x.shape[:2], -1) for each in _sum_in_engine(x.flatten(0, 1))), (0, 0)


@_derive_in_engine.register_vmap
def _derive_batched(info: Any, dims: tuple[int | None, ...], *inputs: Tensor | None) -> tuple[Tensor, int]:
    parts: list[Tensor | None] = []
    for each, dim in zip(inputs, dims, strict=True):
        if each is not None:
            each = each.expand(info.batch_size, *each.shape) if dim is None else each.movedim(dim, 0)
        parts.append(each if each is None else each.flatten(0, 1))
    result: Tensor = _derive_in_engine(*parts)
    return result.reshape(info.batch_size, -1, *result.shape[1:]), 0
