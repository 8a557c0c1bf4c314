"""A smooth form of the AUC over the pairs of a batch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.layers._arguments import check_number

__all__ = ["inbatch_auc_loss"]

# Labels at or below this mark examples that take no part.
_IGNORED_LABEL = -10000.0


def inbatch_auc_loss(label: Tensor, logit: Tensor, neg_weight: float = 1.0) -> Tensor:
    """Return Σ ln sigmoid(x_i − x_j) over positives i (label > 0) and negatives j (−10000 < label ≤ 0).

    It is a log-likelihood, never above 0, as in the original: **negate it to minimise**. ``neg_weight`` scales the
    gradient that negatives get, not the value.

    Shapes: ``label`` and ``logit`` have B elements; the result is a scalar.

    >>> import torch
    >>> round(inbatch_auc_loss(torch.tensor([1.0, 0.0]), torch.tensor([0.5, -0.5])).item(), 4)
    -0.3133
    """
    check_number("neg_weight", neg_weight, above=0.0, at_most=1.0)
    if label.shape != logit.shape:
        raise ConfigError(f"label has shape {tuple(label.shape)}, logit {tuple(logit.shape)}; they must be the same")
    label, logit = label.reshape(-1), logit.reshape(-1)
    positives = logit[label > 0]
    negatives = logit[(label <= 0) & (label > _IGNORED_LABEL)]
    # The value is that of the logits themselves; only the weighted share carries a gradient.
    negatives = neg_weight * negatives + (1 - neg_weight) * negatives.detach()
    return F.logsigmoid(positives.unsqueeze(1) - negatives.unsqueeze(0)).sum()
