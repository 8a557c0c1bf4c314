"""Shampoo: a preconditioner per axis of a weight, blended in after a warm-up with diagonal Adagrad.

For dense gradients; see :mod:`monolith.layers.optimizers` for the contract.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from monolith.layers._arguments import check_number, check_whole
from monolith.layers.optimizers import DenseOptimizer

__all__ = ["Shampoo", "inverse_root"]

# Against division by zero where a gradient has been zero so far, and where the preconditioned step is zero.
_TINY_SQUARE = 1e-30
_TINY_NORM = 1e-10


class Shampoo(DenseOptimizer):
    """Preconditions each axis i of a gradient by S_i^(−1 / (2 · axes)), S_i summing products over the others.

    d ← d + g²; m ← β1 m + (1 − β1) g / sqrt(d + 1e-30); pm ← β1 pm + (1 − β1) · preconditioned g. Up to step ``warmup``
    w ← w − lr · m. Then, with r = clip(step / warmup − 1, 0, 1): w ← w − lr · ((1 − r) · m + r · ‖m‖ / (‖pm‖ + 1e-10)
    · pm).

    Every ``tau_2`` steps S_i ← S_i + G_i (or β2 S_i + (1 − β2) G_i if β2 < 1); every ``tau_1`` steps past the warm-up
    the roots are recomputed, see :func:`inverse_root`.

    Args:
        params: The trained parameters.
        learning_rate: lr, the group's ``lr``.
        beta_1: β1.
        beta_2: β2; 1 sums.
        warmup: Steps of plain diagonal Adagrad.
        tau_1: Steps between roots.
        tau_2: Steps between statistics.
        eigen_head: Smallest non-negligible eigenvalues that are kept.
        eigen_tail: Largest eigenvalues that are kept.
        damping_epsilon: Floor of the eigenvalues.
        max_axis_size: Axes longer than this are left as they are and not counted in the exponent: a statistic has the
            square of the length.

    >>> weight = torch.nn.Parameter(torch.ones(2, 2))
    >>> weight.grad = torch.ones(2, 2)
    >>> Shampoo([weight], 0.1).step()
    >>> [round(value, 4) for value in weight.flatten().tolist()]
    [0.99, 0.99, 0.99, 0.99]
    """

    def __init__(
        self,
        params: ParamsT,
        learning_rate: float = 0.03,
        *,
        beta_1: float = 0.9,
        beta_2: float = 1.0,
        warmup: int = 5000,
        tau_1: int = 200,
        tau_2: int = 20,
        eigen_head: int = 100,
        eigen_tail: int = 100,
        damping_epsilon: float = 1e-3,
        max_axis_size: int = 8192,
    ) -> None:
        defaults = {
            "lr": check_number("Shampoo.learning_rate", learning_rate, at_least=0.0),
            "beta_1": check_number("Shampoo.beta_1", beta_1, at_least=0.0, at_most=1.0),
            "beta_2": check_number("Shampoo.beta_2", beta_2, above=0.0, at_most=1.0),
            "warmup": check_whole("Shampoo.warmup", warmup, at_least=0),
            "tau_1": check_whole("Shampoo.tau_1", tau_1),
            "tau_2": check_whole("Shampoo.tau_2", tau_2),
            "eigen_head": check_whole("Shampoo.eigen_head", eigen_head, at_least=0),
            "eigen_tail": check_whole("Shampoo.eigen_tail", eigen_tail, at_least=0),
            "damping_epsilon": check_number("Shampoo.damping_epsilon", damping_epsilon, above=0.0),
            "max_axis_size": check_whole("Shampoo.max_axis_size", max_axis_size),
        }
        super().__init__(params, defaults)

    def update(self, weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Take one step."""
        if not state:
            _start(state, weight, group["max_axis_size"])
        state["step"] += 1
        step, beta = int(state["step"]), group["beta_1"]
        if (step - 1) % group["tau_2"] == 0:
            _gather(state, gradient, group["beta_2"])
        if step > group["warmup"] and (step - group["warmup"] - 1) % group["tau_1"] == 0:
            _refresh(state, gradient, group)
        state["d"].addcmul_(gradient, gradient)
        m, pm = state["m"], state["pm"]
        m.mul_(beta).add_(gradient * torch.rsqrt(state["d"] + _TINY_SQUARE), alpha=1 - beta)
        pm.mul_(beta).add_(_preconditioned(state, gradient), alpha=1 - beta)
        weight.sub_(_direction(m, pm, step, group["warmup"]), alpha=float(group["lr"]))


def _start(state: dict[str, Any], weight: Tensor, longest: int) -> None:
    # A key called "step" keeps its type when a checkpoint is loaded; the others take that of the weight.
    state["step"] = torch.zeros((), dtype=torch.float64)
    for name in ("d", "m", "pm"):
        state[name] = torch.zeros_like(weight)
    sizes = [size if size <= longest else 0 for size in weight.shape]
    state["statistics"] = [weight.new_zeros(size, size) for size in sizes]
    state["vectors"], state["powers"], state["offsets"] = [], [], []


def _gather(state: dict[str, Any], gradient: Tensor, beta: float) -> None:
    for axis, statistic in enumerate(state["statistics"]):
        if statistic.numel() == 0:
            continue
        rows = gradient.movedim(axis, 0).flatten(1) if gradient.dim() > 1 else gradient.unsqueeze(1)
        statistic.mul_(1.0 if beta == 1 else beta).addmm_(rows, rows.t(), alpha=1.0 if beta == 1 else 1 - beta)


def _refresh(state: dict[str, Any], gradient: Tensor, group: dict[str, Any]) -> None:
    axes = sum(statistic.numel() > 0 for statistic in state["statistics"])
    settings = (2 * max(1, axes), group["eigen_head"], group["eigen_tail"], group["damping_epsilon"])
    roots = [
        inverse_root(statistic, *settings)
        if statistic.numel() > 0
        else (gradient.new_zeros(size, 0), gradient.new_zeros(0), gradient.new_ones(()))
        for statistic, size in zip(state["statistics"], gradient.shape, strict=True)
    ]
    state["vectors"] = [vectors for vectors, _, _ in roots]
    state["powers"] = [powers for _, powers, _ in roots]
    state["offsets"] = [offset for _, _, offset in roots]


def inverse_root(matrix: Tensor, root: int, head: int, tail: int, damping: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return matrix^(−1/root) as (V, p, offset): V diag(p − offset) Vᵀ + offset · I.

    Eigenvalues are floored at ``damping``. Kept exactly are the ``head`` smallest that are above the floor and the
    ``tail`` largest; the rest share the mean of *their powers*. Where all fit, the root is exact.

    Shapes: ``matrix`` (n, n); V (n, k), p (k,), offset ().

    >>> vectors, powers, offset = inverse_root(torch.diag(torch.tensor([4.0, 16.0])), 2, 10, 10, 1e-3)
    >>> (vectors @ torch.diag(powers - offset) @ vectors.t() + offset * torch.eye(2)).diagonal().tolist()
    [0.5, 0.25]
    """
    values, vectors = torch.linalg.eigh(matrix.double())
    powers = values.clamp_min(damping).pow(-1.0 / root)
    n = values.numel()
    if n <= head + tail:
        kept = torch.ones(n, dtype=torch.bool, device=matrix.device)
    else:
        position = torch.arange(n, device=matrix.device)
        first = int((values <= damping).sum())
        kept = ((position >= first) & (position < first + head)) | (position >= n - tail)
    rest = powers[~kept]
    offset = rest.mean() if rest.numel() else powers.new_zeros(())
    return vectors[:, kept].to(matrix.dtype), powers[kept].to(matrix.dtype), offset.to(matrix.dtype)


def _preconditioned(state: dict[str, Any], gradient: Tensor) -> Tensor:
    for axis, (vectors, powers, offset) in enumerate(
        zip(state["vectors"], state["powers"], state["offsets"], strict=True)
    ):
        moved = gradient.movedim(axis, -1)
        moved = offset * moved + ((moved @ vectors) * (powers - offset)) @ vectors.t()
        gradient = moved.movedim(-1, axis)
    return gradient


def _direction(m: Tensor, pm: Tensor, step: int, warmup: int) -> Tensor:
    if step <= warmup:
        return m
    blend = 1.0 if warmup == 0 else min(max(step / warmup - 1, 0.0), 1.0)
    grafted: Tensor = pm * (torch.linalg.vector_norm(m) / (torch.linalg.vector_norm(pm) + _TINY_NORM))
    return (1 - blend) * m + blend * grafted
