"""DIN: attention of a target over a history, without a softmax. See also :mod:`monolith.layers.dien`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.layers._arguments import check_choice, check_dims, check_rank
from monolith.layers.activations import ActivationLike
from monolith.layers.configured import Configured
from monolith.layers.initializers import InitializerLike
from monolith.layers.mlp import MLP
from monolith.layers.regularizers import RegularizerLike

__all__ = ["DIN"]


class DIN(Configured):
    """score_t = MLP([q, k_t, q − k_t, q ∘ k_t]), divided by sqrt(H) with ``decay``, 0 where masked; no softmax.

    Shapes: query (B, H), keys (B, T, H), mask (B, T) or None: positions with mask ≥ 1 count. ``mode="sum"`` gives
    Σ_t score_t · k_t, (B, H); ``mode="none"`` gives score_t · k_t, (B, T, H).

    Args:
        hidden_units: Widths of the MLP; the last is 1.
        activation: Activation of its hidden layers; None is linear.
        initializer: First values of its kernels; None is Glorot normal.
        regularizer: Penalty on its kernels.
        mode: Whether the history is summed.
        decay: Whether scores are divided by sqrt(H).

    >>> DIN([8, 1], "relu")(torch.ones(2, 4), torch.ones(2, 5, 4), torch.ones(2, 5)).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        activation: ActivationLike = None,
        initializer: InitializerLike = None,
        regularizer: RegularizerLike = None,
        mode: Literal["sum", "none"] = "sum",
        decay: bool = False,
    ) -> None:
        super().__init__()
        units = check_dims("DIN.hidden_units", hidden_units)
        if units[-1] != 1:
            raise ConfigError(f"DIN.hidden_units is {units}; the last width must be 1, a score per position")
        self.mode = check_choice("DIN.mode", mode, ("sum", "none"))
        self.decay = decay
        self.scorer = MLP(
            units,
            "linear" if activation is None else activation,
            "glorot_normal" if initializer is None else initializer,
            kernel_regularizer=regularizer,
        )

    def forward(self, query: Tensor, keys: Tensor, mask: Tensor | None = None) -> Tensor:
        """Weigh the history by the target."""
        check_rank("query of DIN", query, 2, "(B, H)")
        check_rank("keys of DIN", keys, 3, "(B, T, H)")
        if query.shape[1] != keys.shape[2]:
            raise ConfigError(
                f"DIN got query width {query.shape[1]} and key width {keys.shape[2]}; they must be the same"
            )
        queries = query.unsqueeze(1).expand_as(keys)
        scores: Tensor = self.scorer(torch.cat([queries, keys, queries - keys, queries * keys], dim=2))
        if self.decay:
            scores = scores / math.sqrt(keys.shape[2])
        if mask is not None:
            scores = torch.where(mask.unsqueeze(2) >= 1, scores, torch.zeros_like(scores))
        weighted = scores * keys
        return weighted.sum(dim=1) if self.mode == "sum" else weighted
