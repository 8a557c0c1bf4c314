"""``AddBias``: a trainable offset of every element."""

from __future__ import annotations

from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.layers._arguments import check_choice
from monolith.layers.initializers import InitializerLike
from monolith.layers.layer import Layer
from monolith.layers.regularizers import RegularizerLike

__all__ = ["AddBias"]


class AddBias(Layer):
    """y = x + b, with one b per element of a row.

    Shapes: x and y (B, ...) of 2 to 5 axes, b the shape of x without the batch. A bias that was stored for
    channels-last rows is read in the same flat order, not transposed, when ``data_format`` is ``"channels_first"``.

    Args:
        initializer: First values of b; None is zeros.
        regularizer: Penalty on b.

    >>> import torch
    >>> AddBias("ones")(torch.zeros(1, 2)).tolist()
    [[1.0, 1.0]]
    """

    bias: Tensor

    def __init__(self, initializer: InitializerLike = None, regularizer: RegularizerLike = None) -> None:
        super().__init__()
        self.declare("bias", "zeros" if initializer is None else initializer, regularizer)

    def measure(self, x: Tensor, data_format: str = "channels_last") -> None:
        """Take all axes but the batch."""
        _check(x, data_format)
        if not self.is_built:
            self.shape("bias", *x.shape[1:])

    def forward(self, x: Tensor, data_format: str = "channels_last") -> Tensor:
        """Compute y."""
        _check(x, data_format)
        bias, row = self.bias, tuple(x.shape[1:])
        if data_format == "channels_first" and tuple(bias.shape) != row and (*bias.shape[-1:], *bias.shape[:-1]) == row:
            bias = bias.reshape(row)
        if tuple(bias.shape) != row:
            raise ConfigError(
                f"AddBias has a bias of shape {tuple(bias.shape)}, the input rows of {row}; feed the same"
            )
        return x + bias


def _check(x: Tensor, data_format: str) -> None:
    check_choice("AddBias data_format", data_format, ("channels_last", "channels_first"))
    if not 2 <= x.dim() <= 5:
        raise ConfigError(f"the input of AddBias has shape {tuple(x.shape)}; give 2 to 5 axes, the batch first")
