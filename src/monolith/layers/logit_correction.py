"""``LogitCorrection``: removes the effect of sampling from a logit, by the sample rate."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from monolith.layers import activations
from monolith.layers.activations import ActivationLike
from monolith.layers.layer import Layer

__all__ = ["LogitCorrection"]


class LogitCorrection(Layer):
    """Logit of the unsampled world → logit of the sampled one, for the loss.

    ============== ================= =======================
    sample rate r  ``sample_bias``   result, then activation
    ============== ================= =======================
    given          False             x − ln r
    none           True              ln sigmoid(x)
    given          True              ln sigmoid(x) − ln r
    none           False             x
    ============== ================= =======================

    Shapes: logits, sample_rate and result are alike, or broadcast.

    Args:
        activation: Activation of the output.
        sample_bias: Whether the log-sigmoid form is used.

    >>> LogitCorrection()(torch.tensor([0.0]), torch.tensor([0.5])).item()
    0.6931471824645996
    """

    def __init__(self, activation: ActivationLike = None, sample_bias: bool = False) -> None:
        super().__init__()
        self.activation = activations.get(activation, "LogitCorrection.activation")
        self.sample_bias = sample_bias

    def forward(self, logits: Tensor, sample_rate: Tensor | float | None = None) -> Tensor:
        """Correct the logits."""
        corrected = correct_logits(logits, sample_rate, self.sample_bias)
        if self.activation is not None:
            corrected = self.activation(corrected)
        return corrected


def correct_logits(logits: Tensor, sample_rate: Tensor | float | None, sample_bias: bool) -> Tensor:
    """Correct the logits; see the table in :class:`LogitCorrection`."""
    corrected = F.logsigmoid(logits) if sample_bias else logits
    if sample_rate is None:
        return corrected
    rate = torch.as_tensor(sample_rate, dtype=logits.dtype, device=logits.device)
    return corrected - torch.log(rate)
