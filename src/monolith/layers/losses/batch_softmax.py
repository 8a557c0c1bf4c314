"""In-batch softmax of a two-tower model, corrected for how often an item is sampled."""

from __future__ import annotations

import torch
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.layers._arguments import check_number, check_rank

__all__ = ["batch_softmax_loss"]

# Keeps a row of zeros zero instead of NaN.
_SQUARED_NORM_FLOOR = 1e-12


def batch_softmax_loss(
    query: Tensor,
    item: Tensor,
    item_step_interval: Tensor,
    r: Tensor,
    normalize: bool = True,
    temperature: float = 1.0,
) -> Tensor:
    """Return −Σ_i r_i ln(e_ii / Σ_j e_ij), with e_ij = exp(q_i · v_j / T − ln f_j) and f_j = 1 / max(interval_j, 1).

    ``item_step_interval`` is how many steps lie between two occurrences of an item, usually a slice trained by
    ``BatchSoftmax``; no gradient flows into it.

    Shapes: ``query`` and ``item`` (B, k), ``item_step_interval`` and ``r`` (B,); the result is a scalar.

    Args:
        query: Rows of the query tower.
        item: Rows of the item tower; row i is the positive of query i, all others are negatives.
        item_step_interval: Steps between occurrences.
        r: Reward of each pair.
        normalize: Whether rows are scaled to length 1 first.
        temperature: T, above 0.

    >>> round(batch_softmax_loss(torch.eye(2), torch.eye(2), torch.ones(2), torch.ones(2)).item(), 4)
    0.6265
    """
    check_number("temperature", temperature, above=0.0)
    check_rank("query", query, 2, "(B, k)")
    if query.shape != item.shape:
        raise ConfigError(f"query has shape {tuple(query.shape)}, item {tuple(item.shape)}; they must be the same")
    if normalize:
        query, item = _unit(query), _unit(item)
    scores = query @ item.t() / temperature
    # −ln f_j = ln max(interval_j, 1).
    scores = scores + torch.log(item_step_interval.detach().to(scores.dtype).clamp_min(1.0)).reshape(1, -1)
    likelihood = torch.diagonal(torch.log_softmax(scores, dim=1))
    return -(r.reshape(-1) * likelihood).sum()


def _unit(rows: Tensor) -> Tensor:
    return rows * torch.rsqrt(rows.square().sum(dim=1, keepdim=True).clamp_min(_SQUARED_NORM_FLOOR))
