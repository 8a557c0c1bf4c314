"""GRU cells whose update is steered by an attention score, and the loop that runs them over a sequence."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.layers import activations
from monolith.layers._arguments import check_choice, check_rank, check_whole
from monolith.layers.activations import ActivationLike
from monolith.layers.initializers import InitializerLike
from monolith.layers.layer import Layer
from monolith.layers.regularizers import RegularizerLike

__all__ = [
    "AGRUCell",
    "dynamic_rnn_with_attention",
    "rnn_with_attention",
    "static_rnn_with_attention",
]


class AGRUCell(Layer):
    """One step of a GRU under attention.

    [r, u] = sigmoid([x, h] Wg + bg); c = act([x, r ∘ h] Wc + bc). Without a score h' = (1 − u) h + u c. AGRU:
    h' = (1 − a) h + a c. AUGRU: u' = (1 − a) u; h' = u' h + (1 − u') c.

    Shapes: x (B, in), h and h' (B, units), a (B,) or (B, 1) or None; Wg (in + units, 2 · units), Wc (in + units,
    units).

    Args:
        units: Width of the state.
        att_type: ``"AGRU"`` or ``"AUGRU"``.
        activation: Of the candidate; None is tanh.
        initializer: First values of the kernels; None is He normal. The biases start as ones.
        regularizer: Penalty on the kernels.

    >>> AGRUCell(3)(torch.zeros(2, 5), torch.zeros(2, 3), torch.zeros(2)).tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """

    gate_kernel: Tensor
    gate_bias: Tensor
    candidate_kernel: Tensor
    candidate_bias: Tensor

    def __init__(
        self,
        units: int,
        att_type: Literal["AGRU", "AUGRU"] = "AGRU",
        activation: ActivationLike = None,
        initializer: InitializerLike = None,
        regularizer: RegularizerLike = None,
    ) -> None:
        super().__init__()
        self.units = check_whole("AGRUCell.units", units)
        self.att_type = check_choice("AGRUCell.att_type", att_type, ("AGRU", "AUGRU"))
        self.activation = activations.get("tanh" if activation is None else activation, "AGRUCell.activation")
        first_values = "he_normal" if initializer is None else initializer
        self.declare("gate_kernel", first_values, regularizer)
        self.declare("gate_bias", "ones")
        self.declare("candidate_kernel", first_values, regularizer)
        self.declare("candidate_bias", "ones")
        self.shape("gate_bias", 2 * units)
        self.shape("candidate_bias", units)

    def measure(self, x: Tensor, h: Tensor | None = None, a: Tensor | None = None) -> None:
        """Take the width of the input."""
        rows = x.shape[-1] + self.units
        self.shape("gate_kernel", rows, 2 * self.units)
        self.shape("candidate_kernel", rows, self.units)

    def forward(self, x: Tensor, h: Tensor, a: Tensor | None = None) -> Tensor:
        """Return the next state."""
        return self.step(*self.project(x), h, a)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the terms of x in the gates and in the candidate; a sequence computes these products only once."""
        width = x.shape[-1]
        return (
            x @ self.gate_kernel[:width] + self.gate_bias,
            x @ self.candidate_kernel[:width] + self.candidate_bias,
        )

    def step(self, to_gates: Tensor, to_candidate: Tensor, h: Tensor, a: Tensor | None) -> Tensor:
        """Return the next state from the projected input."""
        gates = torch.sigmoid(to_gates + h @ self.gate_kernel[-self.units :])
        reset, update = torch.split(gates, self.units, dim=-1)
        candidate = to_candidate + (reset * h) @ self.candidate_kernel[-self.units :]
        if self.activation is not None:
            candidate = self.activation(candidate)
        if a is None:
            return (1 - update) * h + update * candidate
        score = a.unsqueeze(1) if a.dim() == 1 else a
        if self.att_type == "AGRU":
            return (1 - score) * h + score * candidate
        update = (1 - score) * update
        return update * h + (1 - update) * candidate


def rnn_with_attention(
    cell: AGRUCell,
    inputs: Tensor,
    att: Tensor | None,
    init_state: Tensor | None = None,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run ``cell`` over a sequence.

    Shapes: ``inputs`` (B, T, in), ``att`` (B, T) or None for a plain GRU, ``init_state`` (B, units) or None for zeros,
    ``mask`` (B, T): the state does not change where it is below 1. Returns the outputs (B, T, units) and the final
    state.

    ``static_rnn_with_attention`` and ``dynamic_rnn_with_attention`` are this function too: there is one kind of loop
    here.

    >>> outputs, state = rnn_with_attention(AGRUCell(3), torch.zeros(2, 4, 5), torch.zeros(2, 4))
    >>> outputs.shape, state.shape
    (torch.Size([2, 4, 3]), torch.Size([2, 3]))
    """
    check_rank("inputs of rnn_with_attention", inputs, 3, "(B, T, in)")
    if att is not None and tuple(att.shape[1:]) != (inputs.shape[1],):
        raise ConfigError(
            f"att has shape {tuple(att.shape)}, inputs {tuple(inputs.shape)}; give one score per step, (B, T)"
        )
    if not cell.is_settled:
        cell.build(inputs)
    to_gates, to_candidate = cell.project(inputs)
    state = inputs.new_zeros(inputs.shape[0], cell.units) if init_state is None else init_state
    outputs = []
    for t in range(inputs.shape[1]):
        following = cell.step(to_gates[:, t], to_candidate[:, t], state, None if att is None else att[:, t])
        state = following if mask is None else torch.where(mask[:, t : t + 1] >= 1, following, state)
        outputs.append(state)
    if not outputs:  # no positions
        return inputs.new_zeros(inputs.shape[0], 0, cell.units), state
    return torch.stack(outputs, dim=1), state


static_rnn_with_attention = rnn_with_attention
dynamic_rnn_with_attention = rnn_with_attention
