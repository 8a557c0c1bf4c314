"""Deep & cross network: powers of the whole input vector. Pairs are in :mod:`monolith.layers.interaction`."""

from __future__ import annotations

import enum

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parameter import is_lazy

from monolith.core.errors import ConfigError
from monolith.layers._arguments import check_last_dim, check_number, check_rank, check_whole
from monolith.layers.initializers import InitializerLike
from monolith.layers.kernel_norm import column_norms, normalized_kernel
from monolith.layers.layer import Layer
from monolith.layers.regularizers import RegularizerLike

__all__ = ["DCN", "DCNType"]


class DCNType(enum.StrEnum):
    """The form of a cross layer."""

    VECTOR = "vector"
    MATRIX = "matrix"
    MIXED = "mixed"


class DCN(Layer):
    """Cross layers on x, which starts as x0; each has a bias b (d,) that starts as zeros.

    - vector: x ← x0 · (x · w) + b + x, w (d, 1).
    - matrix: x ← x0 ∘ (x W + b) + x, W (d, d).
    - mixed: x ← Σ_e g_e · x0 ∘ (tanh(tanh(x V_e) C_e) U_eᵀ + b) + x, V, U (d, r), C (r, r), g = softmax over the
      experts of x · G_e, G_e (d, 1).

    Shapes: x0 and the result (B, d).

    Args:
        layer_num: How many cross layers.
        dcn_type: The form.
        initializer: First values of the weights; None is Glorot normal.
        regularizer: Penalty on weights and biases.
        num_experts: Experts of the mixed form.
        low_rank: r of the mixed form.
        allow_kernel_norm: Whether weights (never biases) are normalised per column, with a trained length.
        use_dropout: Whether training drops elements after each layer.
        keep_prob: Share that survives.

    >>> DCN(2, "matrix")(torch.ones(4, 3)).shape
    torch.Size([4, 3])
    """

    def __init__(
        self,
        layer_num: int = 1,
        dcn_type: DCNType | str = "matrix",
        initializer: InitializerLike = None,
        regularizer: RegularizerLike = None,
        num_experts: int = 1,
        low_rank: int = 0,
        allow_kernel_norm: bool = False,
        use_dropout: bool = False,
        keep_prob: float = 0.95,
    ) -> None:
        super().__init__()
        self.layer_num = check_whole("DCN.layer_num", layer_num)
        try:
            self.dcn_type = DCNType(dcn_type)
        except ValueError:
            raise ConfigError(f"DCN.dcn_type is {dcn_type!r}; give 'vector', 'matrix' or 'mixed'") from None
        self.num_experts = check_whole("DCN.num_experts", num_experts)
        self.low_rank = check_whole("DCN.low_rank", low_rank, at_least=1 if self.dcn_type is DCNType.MIXED else 0)
        self.allow_kernel_norm = allow_kernel_norm
        self.use_dropout = use_dropout
        self.keep_prob = check_number("DCN.keep_prob", keep_prob, above=0.0, at_most=1.0)
        first_values = "glorot_normal" if initializer is None else initializer
        for layer in range(self.layer_num):
            self.declare(f"bias_{layer}", "zeros", regularizer)
            for name in self._weight_names(layer):
                self.declare(name, first_values, regularizer)
                if allow_kernel_norm:
                    self.declare(f"{name}_scale", "ones")

    def _weight_names(self, layer: int) -> list[str]:
        if self.dcn_type is not DCNType.MIXED:
            return [f"kernel_{layer}"]
        return [f"{part}_{layer}_{expert}" for expert in range(self.num_experts) for part in ("u", "v", "c", "gate")]

    def measure(self, x0: Tensor) -> None:
        """Take the width of the input."""
        check_rank("the input of DCN", x0, 2, "(B, d)")
        d, r = x0.shape[1], self.low_rank
        sizes = {"u": (d, r), "v": (d, r), "c": (r, r), "gate": (d, 1), "kernel": (d, d)}
        if self.dcn_type is DCNType.VECTOR:
            sizes["kernel"] = (d, 1)
        for layer in range(self.layer_num):
            self.shape(f"bias_{layer}", d)
            for name in self._weight_names(layer):
                weight = self.shape(name, *sizes[name.split("_")[0]])
                if self.allow_kernel_norm and is_lazy(getattr(self, f"{name}_scale")):
                    with torch.no_grad():
                        self.shape(f"{name}_scale", weight.shape[1]).copy_(column_norms(weight))

    def _weight(self, name: str) -> Tensor:
        weight: Tensor = getattr(self, name)
        return normalized_kernel(weight, getattr(self, f"{name}_scale")) if self.allow_kernel_norm else weight

    def forward(self, x0: Tensor) -> Tensor:
        """Cross ``x0`` with itself."""
        x = x0
        for layer in range(self.layer_num):
            bias: Tensor = getattr(self, f"bias_{layer}")
            check_last_dim("the input of DCN", x0.shape[-1], bias.shape[0], "feed the width the layer was built with")
            if self.dcn_type is DCNType.VECTOR:
                x = x0 * (x @ self._weight(f"kernel_{layer}")) + bias + x
            elif self.dcn_type is DCNType.MATRIX:
                x = x0 * (x @ self._weight(f"kernel_{layer}") + bias) + x
            else:
                x = self._mixture(layer, x0, x, bias) + x
            if self.use_dropout:
                x = F.dropout(x, 1 - self.keep_prob, self.training)
        return x

    def _mixture(self, layer: int, x0: Tensor, x: Tensor, bias: Tensor) -> Tensor:
        outputs, scores = [], []
        for expert in range(self.num_experts):
            low = torch.tanh(x @ self._weight(f"v_{layer}_{expert}"))
            low = torch.tanh(low @ self._weight(f"c_{layer}_{expert}"))
            outputs.append(x0 * (low @ self._weight(f"u_{layer}_{expert}").t() + bias))
            scores.append(x @ self._weight(f"gate_{layer}_{expert}"))
        gates = torch.softmax(torch.cat(scores, dim=1), dim=1)
        return (torch.stack(outputs, dim=1) * gates.unsqueeze(2)).sum(dim=1)
