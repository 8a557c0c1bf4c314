"""Losses for streams that show every impression as a negative first, and each positive once more as a positive.

A stream of a fast joiner has r negatives and q positives per impression, where q is the true chance and r the sample
rate of negatives. Plain cross entropy learns q / (q + r) there. Both losses below learn q. The method is that of
Ktena et al. 2019, "Addressing delayed feedback for continuous training with neural networks in CTR prediction". The
formulas here allow r below 1.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.layers.losses.heads import check_per_example, sigmoid_loss_and_pred

__all__ = ["DelayedFeedback", "delayed_feedback_loss"]

DelayedFeedback: TypeAlias = Literal["fnw", "fnc"]
"""``fnw`` weights fake negatives, ``fnc`` calibrates the logit."""


def delayed_feedback_loss(
    logits: Tensor,
    label: Tensor,
    sample_rate: Tensor | float | None = 1.0,
    *,
    method: DelayedFeedback,
    instance_weight: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Return the summed loss. Predict with ``sigmoid(logits)``.

    With p = sigmoid(logit) and the sample rate r:

    - ``fnw``: cross entropy with the weight p + r of a positive and (1 − p)(p + r) / r of a negative. No gradient flows
      through the weights.
    - ``fnc``: cross entropy of the logit ln p − ln r, whose sigmoid is p / (p + r).

    The expected gradient of both is zero where p is the true chance. ``fnw`` starts with wrong weights when p is far
    off; ``fnc`` has small gradients near p = 1.

    Shapes: all tensors (B,); the loss is a scalar.

    Args:
        logits: Logits of the true chance.
        label: 0 or 1.
        sample_rate: r: share of negatives that the joiner kept; None is 1.
        method: The loss.
        instance_weight: Weight of each example.
        mask: Where true (or 1) the label is known; elsewhere the label may hold any value.

    Raises:
        ConfigError: The method is unknown, or shapes differ.

    >>> round(delayed_feedback_loss(torch.zeros(1), torch.ones(1), method="fnw").item(), 6)
    1.039721
    """
    if method not in ("fnw", "fnc"):
        raise ConfigError(f"delayed_feedback is {method!r}, expected 'fnw' or 'fnc'")
    if label.shape != logits.shape:
        raise ConfigError(f"label has shape {tuple(label.shape)}, logits {tuple(logits.shape)}; make them the same")
    check_per_example("instance_weight", instance_weight, logits)
    if method == "fnw":
        weights = _weigh(logits, label, sample_rate)
        instance_weight = weights if instance_weight is None else weights * instance_weight
        sample_rate = None
    loss, _ = sigmoid_loss_and_pred(
        logits, label, sample_rate, sample_bias=method == "fnc", instance_weight=instance_weight, mask=mask
    )
    assert loss is not None
    return loss


def _weigh(logits: Tensor, label: Tensor, sample_rate: Tensor | float | None) -> Tensor:
    """Return the weight of each example under FNW."""
    logits = logits.detach()
    rate = torch.as_tensor(1.0 if sample_rate is None else sample_rate, dtype=logits.dtype, device=logits.device)
    positive = torch.sigmoid(logits) + rate
    return torch.where(label > 0.5, positive, torch.sigmoid(-logits) * positive / rate)
