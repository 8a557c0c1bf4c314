"""DIEN: a GRU finds interests in a history, a second one under attention follows those that concern the target."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.layers._arguments import check_choice, check_rank, check_whole
from monolith.layers.activations import ActivationLike
from monolith.layers.initializers import InitializerLike
from monolith.layers.layer import Layer
from monolith.layers.recurrent import AGRUCell, rnn_with_attention
from monolith.layers.regularizers import RegularizerLike

__all__ = ["DIEN"]


class DIEN(Layer):
    """h = GRU(keys); a = softmax over T of h · (W qᵀ); the result is the last state of the attention GRU over (h, a).

    Shapes: query (B, u), keys (B, T, in), mask (B, T) or None: positions with mask ≥ 1 count; result (B, u). Masked
    positions get no attention and leave both states as they are; an empty history gives zeros.

    Args:
        num_units: u, the width of the query and of the states.
        att_type: ``"AGRU"`` or ``"AUGRU"``, the form of the second GRU.
        activation: Of the candidate states.
        initializer: First values of the kernels; W too.
        regularizer: Penalty on the kernels.

    >>> DIEN(4)(torch.ones(2, 4), torch.ones(2, 5, 3)).shape
    torch.Size([2, 4])
    """

    attention_kernel: Tensor

    def __init__(
        self,
        num_units: int,
        att_type: Literal["AGRU", "AUGRU"] = "AGRU",
        activation: ActivationLike = "relu",
        initializer: InitializerLike = "he_uniform",
        regularizer: RegularizerLike = None,
    ) -> None:
        super().__init__()
        self.num_units = check_whole("DIEN.num_units", num_units)
        check_choice("DIEN.att_type", att_type, ("AGRU", "AUGRU"))
        self.interest = AGRUCell(num_units, att_type, activation, initializer, regularizer)
        self.evolution = AGRUCell(num_units, att_type, activation, initializer, regularizer)
        self.declare("attention_kernel", initializer, regularizer)
        self.shape("attention_kernel", num_units, num_units)

    def forward(self, query: Tensor, keys: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the interest that concerns the target."""
        check_rank("query of DIEN", query, 2, "(B, num_units)")
        check_rank("keys of DIEN", keys, 3, "(B, T, in)")
        if query.shape[1] != self.num_units:
            raise ConfigError(
                f"query of DIEN has width {query.shape[1]}, num_units is {self.num_units}; make them equal"
            )
        states, _ = rnn_with_attention(self.interest, keys, None, mask=mask)
        logits = torch.matmul(states, (query @ self.attention_kernel.t()).unsqueeze(2)).squeeze(2)
        _, final = rnn_with_attention(self.evolution, states, _masked_softmax(logits, mask), mask=mask)
        return final


def _masked_softmax(logits: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return torch.softmax(logits, dim=1)
    # The lowest finite number, not −inf: a row without any position must not become NaN.
    lowest = torch.finfo(logits.dtype).min
    return torch.softmax(torch.where(mask >= 1, logits, torch.full_like(logits, lowest)), dim=1)
