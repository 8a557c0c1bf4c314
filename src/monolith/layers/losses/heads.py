"""The loss and the prediction of a head. The loss is a sum over the batch, so its size follows the batch's."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.layers._arguments import check_number
from monolith.layers.logit_correction import correct_logits

__all__ = ["sigmoid_loss_and_pred", "softmax_loss_and_pred"]


def sigmoid_loss_and_pred(
    logits: Tensor,
    label: Tensor | None,
    sample_rate: Tensor | float | None = 1.0,
    *,
    sample_bias: bool = False,
    instance_weight: Tensor | None = None,
    mask: Tensor | None = None,
    logit_clip_threshold: float | None = None,
    predict_before_correction: bool = True,
) -> tuple[Tensor | None, Tensor]:
    """Return the summed sigmoid cross entropy and the predicted probabilities.

    biased = the logits corrected for sampling (:class:`monolith.layers.LogitCorrection`), clipped to ±ln((1 − c) / c)
    if a threshold c is given; loss = Σ mask · weight · cross entropy(label, biased); prediction = sigmoid(logits), or
    sigmoid(biased) before the clip unless ``predict_before_correction``.

    Shapes: all tensors (B,) or alike; the loss is a scalar, None without a label (prediction only).

    Args:
        logits: Logits of the model, for the distribution without sampling.
        label: 0 or 1, or between.
        sample_rate: Share of such examples that was kept; None is 1.
        sample_bias: Whether the log-sigmoid form of the correction is used.
        instance_weight: Weight of each example.
        mask: Where true (or 1) the label is known; elsewhere the label may hold anything, NaN too.
        logit_clip_threshold: c, between 0 and 1.
        predict_before_correction: Whether predictions are of the unsampled world.

    >>> loss, pred = sigmoid_loss_and_pred(torch.zeros(2), torch.tensor([1.0, 0.0]))
    >>> round(loss.item(), 4), pred.tolist()
    (1.3863, [0.5, 0.5])
    """
    biased = correct_logits(logits, 1.0 if sample_rate is None else sample_rate, sample_bias)
    pred = torch.sigmoid(logits if predict_before_correction else biased)
    if logit_clip_threshold is not None:
        biased = _clip_logits(biased, logit_clip_threshold)
    if label is None:
        return None, pred
    if label.shape != biased.shape:
        raise ConfigError(
            f"label has shape {tuple(label.shape)}, logits {tuple(biased.shape)}; make them the same, e.g. squeeze(1)"
        )
    label = label.to(biased.dtype)
    check_per_example("mask", mask, biased)
    check_per_example("instance_weight", instance_weight, biased)
    if mask is not None:
        known = mask.to(torch.bool)
        label = torch.where(known, label, torch.zeros_like(label))
    losses = F.binary_cross_entropy_with_logits(biased, label, reduction="none")
    if mask is not None:
        losses = torch.where(known, losses, torch.zeros_like(losses))
    if instance_weight is not None:
        losses = losses * instance_weight
    return losses.sum(), pred


def check_per_example(label: str, given: Tensor | None, logits: Tensor) -> None:
    """Refuse a tensor that would repeat the examples of ``logits``, such as (B,) beside logits of (B, 1)."""
    if given is None or not isinstance(given, Tensor):
        return
    sizes = zip(reversed(given.shape), reversed(logits.shape), strict=False)
    if given.dim() > logits.dim() or not all(size in (1, expected) for size, expected in sizes):
        raise ConfigError(
            f"{label} has shape {tuple(given.shape)}, logits {tuple(logits.shape)}; make them the same, e.g. squeeze(1)"
        )


def _clip_logits(logits: Tensor, threshold: float) -> Tensor:
    check_number("logit_clip_threshold", threshold, above=0.0)
    if threshold >= 1:
        raise ConfigError(f"logit_clip_threshold is {threshold!r}; give a number between 0 and 1")
    bound = abs(math.log((1 - threshold) / threshold))
    return logits.clamp(-bound, bound)


def softmax_loss_and_pred(logits: Tensor, label: Tensor | None) -> tuple[Tensor | None, Tensor]:
    """Return the cross entropy of each row with its one-hot (or soft) label, and the likeliest class.

    Shapes: ``logits`` and ``label`` (B, classes); the loss is (B,), not reduced, None without a label; the prediction
    is (B,), int64.

    >>> loss, pred = softmax_loss_and_pred(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]]))
    >>> round(loss.item(), 4), pred.item()
    (0.6931, 0)
    """
    pred = logits.argmax(dim=-1)
    if label is None:
        return None, pred
    if label.shape != logits.shape:
        raise ConfigError(f"label has shape {tuple(label.shape)}, logits {tuple(logits.shape)}; give one-hot labels")
    return -(label.to(logits.dtype) * torch.log_softmax(logits, dim=-1)).sum(dim=-1), pred
