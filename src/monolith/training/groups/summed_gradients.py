"""Sums of the gradients that several processes computed for the same weights.

The loss of a batch is a sum over its examples, so gradients are added, not averaged.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from monolith.core.errors import TrainingDiverged
from monolith.embedding.ranks.channel import Channel
from monolith.training.groups.base import LocalGradients

__all__ = ["sum_step"]


def sum_step(
    words: Channel, gradients: Channel, local: LocalGradients, numbers: Sequence[float], member: str
) -> tuple[list[float], list[nn.Parameter], list[Tensor]]:
    """Return sums over all processes of some numbers, the weights with a gradient anywhere, and their gradients.

    Args:
        words: The channel of numbers in host memory.
        gradients: The channel of gradients, on the device of the weights.
        local: The step of this process.
        numbers: Numbers of this process.
        member: The name of a process for errors: ``rank`` or ``worker``.

    Raises:
        TrainingDiverged: The loss of a process is not finite; every process raises.
    """
    own = [len(local.failures), *numbers, *(each.grad is not None for each in local.weights)]
    diverged, *sums = words.sum(torch.tensor(own, dtype=torch.float64)).tolist()
    if local.failures:
        raise local.failures.pop()
    if diverged:
        raise TrainingDiverged(
            f"step {local.step + 1}: the loss of another {member} is not finite; see the log of that {member}"
        )
    has_gradient = sums[len(numbers) :]
    weights = [each for each, processes in zip(local.weights, has_gradient, strict=True) if processes]
    return sums[: len(numbers)], weights, _sum_gradients(gradients, weights)


@torch.no_grad()
def _sum_gradients(channel: Channel, weights: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return the sum of each weight's gradients, the same bytes at every process; a missing gradient adds zero.

    One flat sum per data type, so that a step is one call however many weights there are.
    """
    sums: dict[int, Tensor] = {}
    for dtype in dict.fromkeys(each.dtype for each in weights):
        same = [each for each in weights if each.dtype == dtype]
        parts = [torch.zeros_like(each) if each.grad is None else each.grad for each in same]
        flat = channel.sum(torch.cat([each.reshape(-1) for each in parts]))
        for weight, part in zip(same, torch.split(flat, [each.numel() for each in same]), strict=True):
            sums[id(weight)] = part.view_as(weight)
    return [sums[id(each)] for each in weights]
