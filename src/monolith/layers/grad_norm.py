"""Balances the gradients that several losses send into shared tensors.

A training-time device: it differentiates inside ``forward``, so it is never part of an exported model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.layers._arguments import check_number
from monolith.layers.layer import Layer

__all__ = ["GradNorm"]


class GradNorm(Layer):
    """Weights of losses, trained until their weighted gradients have equal norms.

    With w = softmax(trainable vector, zeros at first) and n_k = ‖∂loss_k / ∂shared‖ (no gradient through it):
    wn = n ∘ w; avg = Σ wn / K; diff = |wn − avg|, divided by avg + epsilon if ``relative_diff``. Returns
    (scale · Σ diff^loss_pow, Σ loss_k · w_k), the latter with no gradient to w.

    Shapes: K scalar losses, any number of shared tensors; two scalars come back.

    Args:
        loss_names: A name for each loss; their order is that of the weights.
        scale: Factor of the balance loss.
        loss_pow: Power of the differences.
        relative_diff: Whether differences are relative to the average.
        epsilon: Added to the average in the relative form.

    >>> shared = torch.ones(1, 1, requires_grad=True)
    >>> balance, total = GradNorm(["click", "buy"])([3 * shared.sum(), 4 * shared.sum()], [shared])
    >>> balance.item(), total.item()
    (0.125, 3.5)
    """

    def __init__(
        self,
        loss_names: Sequence[str],
        scale: float = 1.0,
        loss_pow: float = 2.0,
        relative_diff: bool = False,
        epsilon: float = 1e-6,
    ) -> None:
        super().__init__()
        self.loss_names = list(loss_names)
        if not self.loss_names or len(set(self.loss_names)) != len(self.loss_names):
            raise ConfigError(f"GradNorm.loss_names is {self.loss_names!r}; give at least one name, none twice")
        self.scale = check_number("GradNorm.scale", scale, above=0.0)
        self.loss_pow = check_number("GradNorm.loss_pow", loss_pow, above=0.0)
        self.relative_diff = relative_diff
        self.epsilon = check_number("GradNorm.epsilon", epsilon, above=0.0)
        self.logits = torch.nn.Parameter(torch.zeros(len(self.loss_names)))

    @property
    def weights(self) -> Tensor:
        """The weight of each loss; they sum to 1."""
        return torch.softmax(self.logits, dim=0)

    def forward(
        self, losses: Mapping[str, Tensor] | Sequence[Tensor], shared: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the balance loss and the weighted sum of the losses."""
        ordered = self._in_order(losses)
        if not shared:
            raise ConfigError("GradNorm got no shared tensor; give those that every loss depends on")
        norms = torch.stack([_gradient_norm(loss, shared) for loss in ordered]).to(self.logits.dtype)
        total = torch.stack([loss.reshape(()) for loss in ordered]) @ self.weights.detach()
        return self.balance(norms), total

    def balance(self, norms: Tensor) -> Tensor:
        """Return the balance loss of given gradient norms (K,)."""
        weighted = norms.detach() * self.weights
        average = weighted.sum() / len(self.loss_names)
        diff = (weighted - average).abs()
        if self.relative_diff:
            diff = diff / (average + self.epsilon)
        # A power below 1 has an infinite slope at 0, where the weights have nothing to learn.
        is_apart = diff > 0
        powers = torch.where(is_apart, diff, torch.ones_like(diff)).pow(self.loss_pow)
        return self.scale * torch.where(is_apart, powers, torch.zeros_like(powers)).sum()

    def _in_order(self, losses: Mapping[str, Tensor] | Sequence[Tensor]) -> list[Tensor]:
        if isinstance(losses, Mapping):
            if set(losses) != set(self.loss_names):
                raise ConfigError(f"GradNorm got losses {sorted(losses)}; loss_names are {sorted(self.loss_names)}")
            return [losses[name] for name in self.loss_names]
        if len(losses) != len(self.loss_names):
            raise ConfigError(f"GradNorm got {len(losses)} losses for {len(self.loss_names)} loss_names; give one each")
        return list(losses)


def _gradient_norm(loss: Tensor, shared: Sequence[Tensor]) -> Tensor:
    gradients: tuple[Tensor | None, ...] = torch.autograd.grad(loss, list(shared), retain_graph=True, allow_unused=True)
    present = [gradient.detach().square().sum() for gradient in gradients if gradient is not None]
    return torch.stack(present).sum().sqrt() if present else loss.new_zeros(())
