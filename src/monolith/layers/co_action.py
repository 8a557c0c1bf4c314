"""CAN, the co-action network: the item's row is a small network that the user's row passes through."""

from __future__ import annotations

import torch
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.layers import activations
from monolith.layers._arguments import check_rank, check_whole
from monolith.layers.activations import ActivationLike
from monolith.layers.configured import Configured

__all__ = ["CAN"]


class CAN(Configured):
    """h ← act(h · W_l + b_l) per layer, with W_l (d, d) and b_l (d,) read from the item's row, layer after layer.

    Shapes: item (B, (d² + d) · layer_num); user and result depend on the form:

    =========  ============  ============= ===========
    is_seq     is_stacked    user          result
    =========  ============  ============= ===========
    False      True          (B, n, d)     (B, n, d)
    True       True          (B, n, T, d)  (B, n, d), summed over T
    True       False         (B, T, d)     (B, d), summed over T
    False      False         (B, d)        (B, d)
    =========  ============  ============= ===========

    Args:
        layer_num: Layers in an item's row.
        activation: After each layer; None is linear.
        is_seq: Whether the user input has a time axis.
        is_stacked: Whether it has a feature axis.

    >>> CAN(layer_num=1)(torch.ones(2, 3, 4), torch.ones(2, 20))[0, 0].tolist()
    [5.0, 5.0, 5.0, 5.0]
    """

    def __init__(
        self,
        layer_num: int = 2,
        activation: ActivationLike = "relu",
        is_seq: bool = False,
        is_stacked: bool = True,
    ) -> None:
        super().__init__()
        self.layer_num = check_whole("CAN.layer_num", layer_num)
        self.activation = activations.get(activation, "CAN.activation")
        self.is_seq = is_seq
        self.is_stacked = is_stacked

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Pass ``user`` through the networks of ``item``."""
        rank = 2 + self.is_seq + self.is_stacked
        form = "(B, " + "n, " * self.is_stacked + "T, " * self.is_seq + "d)"
        check_rank("user of CAN", user, rank, form)
        check_rank("item of CAN", item, 2, "(B, (d² + d) · layer_num)")
        d = user.shape[-1]
        if item.shape[1] != (d * d + d) * self.layer_num:
            raise ConfigError(
                f"item of CAN has width {item.shape[1]}, user has d = {d}; give (d² + d) · layer_num = "
                f"{(d * d + d) * self.layer_num}"
            )
        # One axis in front of d, so that both forms are products of matrices.
        hidden = user.unsqueeze(1) if rank == 2 else user
        between = (1,) * (hidden.dim() - 3)
        for part in item.chunk(self.layer_num, dim=1):
            kernel = torch.unflatten(part[:, : d * d], 1, (*between, d, d))
            bias = torch.unflatten(part[:, d * d :], 1, (*between, 1, d))
            hidden = hidden @ kernel + bias
            if self.activation is not None:
                hidden = self.activation(hidden)
        if self.is_seq:
            return hidden.sum(dim=-2)
        return hidden.squeeze(1) if rank == 2 else hidden
