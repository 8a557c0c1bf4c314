"""CIN, the compressed interaction network of xDeepFM: explicit crosses of rising degree, kept per embedding column."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from monolith.layers import activations
from monolith.layers._arguments import check_dims
from monolith.layers.activations import ActivationLike
from monolith.layers.initializers import InitializerLike
from monolith.layers.interaction import as_stack
from monolith.layers.layer import Layer
from monolith.layers.mlp import values_of_layers
from monolith.layers.regularizers import RegularizerLike

__all__ = ["CIN"]


class CIN(Layer):
    """x_i = act(W_i · (x_{i−1} ⊗ x_0) + b_i) per embedding column; the output is Σ over columns of every x_i.

    Shapes: X (B, m, D) or a list of m (B, D); W_i (H_{i−1}·m, H_i), where H_0 = m; out (B, ΣH_i).

    Args:
        hidden_units: H_1, H_2, ...
        activation: On all layers but the last; None is linear.
        initializer: First values of the kernels.
        regularizer: Penalty on the kernels.

    >>> CIN([6, 4])(torch.ones(2, 3, 5)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        activation: ActivationLike = None,
        initializer: InitializerLike = "glorot_uniform",
        regularizer: RegularizerLike = None,
    ) -> None:
        super().__init__()
        self.hidden_units = check_dims("CIN.hidden_units", hidden_units)
        hidden = values_of_layers("CIN.activation", activation, len(self.hidden_units) - 1)
        chosen = [activations.get(entry, "CIN.activation") for entry in hidden]
        self.activations = torch.nn.ModuleList(activations.Linear() if entry is None else entry for entry in chosen)
        for layer, units in enumerate(self.hidden_units):
            self.declare(f"kernel_{layer}", initializer, regularizer)
            self.declare(f"bias_{layer}", "zeros")
            self.shape(f"bias_{layer}", units)

    def measure(self, features: Tensor | Sequence[Tensor]) -> None:
        """Take the number of features."""
        m = as_stack("the input of CIN", features).shape[1]
        for layer, (before, units) in enumerate(zip([m, *self.hidden_units[:-1]], self.hidden_units, strict=True)):
            self.shape(f"kernel_{layer}", before * m, units)

    def forward(self, features: Tensor | Sequence[Tensor]) -> Tensor:
        """Compute the crosses of every degree."""
        x0 = as_stack("the input of CIN", features).transpose(1, 2)
        x, sums = x0, []
        for layer in range(len(self.hidden_units)):
            outer = (x.unsqueeze(3) * x0.unsqueeze(2)).flatten(2)
            kernel: Tensor = getattr(self, f"kernel_{layer}")
            bias: Tensor = getattr(self, f"bias_{layer}")
            x = outer @ kernel + bias
            if layer < len(self.activations):
                x = self.activations[layer](x)
            sums.append(x.sum(dim=1))
        return torch.cat(sums, dim=1)
