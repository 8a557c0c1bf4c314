"""What several processes learnt in a step about the same weights, added up. Which processes these are, a channel knows.

The loss of a batch is a sum over its examples, so gradients are added up, not averaged.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from monolith.training.heads import Heads
from monolith.training.synchronous.peers import Channel

__all__ = ["NO_HEADS", "shared_objective", "summed_gradients"]

NO_HEADS = Heads(loss=None, losses={}, predictions={}, outputs={}, masks={}, weights={})
"""What a process without an example says."""


def shared_objective(heads: Heads, share: float) -> Tensor:
    """Return what the gradients are of: the heads' losses in full, and a share of those of the layers.

    The latter are there once, however many examples there are.
    """
    losses = [loss if name in heads.outputs else loss * share for name, loss in heads.losses.items()]
    return torch.stack(losses).sum()


@torch.no_grad()
def summed_gradients(channel: Channel, weights: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return the sum of each weight's gradients over all processes, the same bytes at all; one without adds nothing.

    One flat sum per type of numbers, so that a step is one call however many weights there are.
    """
    found: dict[int, Tensor] = {}
    for dtype in dict.fromkeys(each.dtype for each in weights):
        same = [each for each in weights if each.dtype == dtype]
        parts = [torch.zeros_like(each) if each.grad is None else each.grad for each in same]
        flat = channel.sum(torch.cat([each.reshape(-1) for each in parts]))
        for weight, part in zip(same, torch.split(flat, [each.numel() for each in same]), strict=True):
            found[id(weight)] = part.view_as(weight)
    return [found[id(each)] for each in weights]
