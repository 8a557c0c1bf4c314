"""Relaxed sampling of k of n items, with a gradient to their weights (Xie and Ermon, 2019)."""

from __future__ import annotations

import torch
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.layers._arguments import check_number, check_whole

__all__ = ["continuous_topk", "gumbel_keys", "sample_subset"]


def gumbel_keys(w: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return w plus Gumbel noise: the k largest keys are k items drawn without replacement in proportion to e^w.

    Shapes: any; the result is the same.
    """
    tiny = torch.finfo(w.dtype).tiny
    if generator is None:
        u = torch.rand_like(w)
    else:
        u = torch.rand(w.shape, generator=generator, dtype=w.dtype, device=w.device)
    # −ln u is 0 where u rounds to 1.
    return w - torch.log((-torch.log(u.clamp_min(tiny))).clamp_min(tiny))


def continuous_topk(w: Tensor, k: int, t: float = 0.1) -> Tensor:
    """Return a soft k-hot vector of the k largest: the sum of k softmaxes, each masked by ln(1 − the one before).

    Shapes: ``w`` (..., n); the result is the same, each row sums to k.

    >>> continuous_topk(torch.tensor([1.0, 5.0, 3.0]), 2).round().tolist()
    [0.0, 1.0, 1.0]
    """
    check_number("t", t, above=0.0)
    if check_whole("k", k) > w.shape[-1]:
        raise ConfigError(f"k is {k}, w has {w.shape[-1]} items; draw at most as many as there are")
    tiny = torch.finfo(w.dtype).tiny
    chosen = torch.zeros_like(w)
    soft = torch.zeros_like(w)
    for _ in range(k):
        w = w + torch.log((1 - soft).clamp_min(tiny))
        soft = torch.softmax(w / t, dim=-1)
        chosen = chosen + soft
    return chosen


def sample_subset(w: Tensor, k: int, t: float = 0.1, generator: torch.Generator | None = None) -> Tensor:
    """Return a soft k-hot vector of k items drawn without replacement in proportion to e^w.

    Shapes: ``w`` (..., n); the result is the same, each row sums to k.

    >>> round(sample_subset(torch.zeros(5), 2).sum().item(), 4)
    2.0
    """
    return continuous_topk(gumbel_keys(w, generator), k, t)
