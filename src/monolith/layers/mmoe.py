"""MMoE: experts shared by tasks, mixed by a gate per task. See also :mod:`monolith.layers.snr`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from monolith.core.errors import ConfigError
from monolith.layers._arguments import check_choice, check_dims, check_whole
from monolith.layers.activations import ActivationLike
from monolith.layers.initializers import InitializerLike
from monolith.layers.layer import Layer, LossRecord
from monolith.layers.merging import extend_as_list
from monolith.layers.mlp import MLP, MLPOptions

__all__ = ["MMoE"]


class MMoE(Layer):
    """task_t = Σ_e gate_te · expert_e(x), gates = softmax over experts of gate_input · Wg, which starts as zeros.

    ``gate_type``: ``"softmax"`` uses all experts. ``"topk"`` keeps gates of at least the k-th largest (ties are kept)
    and rescales them to sum 1. ``"noise_topk"`` adds N(0, 1) · softplus(gate_input · Wn) to the logits first, in
    training. The last two record, per task, the layer loss var / mean² over experts of Σ_batch gate, in training.

    Shapes: x (B, in), gate_input (B, g) or None for x; result a list of ``num_tasks`` tensors (B, last width).

    Args:
        num_tasks: How many tasks.
        expert_output_dims: Widths of every expert, or a list of them, one entry per expert. Last widths must be equal.
        expert_activations: Activations of :class:`MLP` for every expert, or a list with one entry per expert.
        expert_initializers: Initializers likewise.
        gate_type: The form of the gate.
        top_k: Experts that a sparse gate keeps.
        num_experts: How many experts; None takes the length of a list above.
        options: The other arguments of :class:`monolith.layers.MLP`, for the experts.

    >>> tasks = MMoE(2, [8, 4], num_experts=3)(torch.ones(5, 6))
    >>> [task.shape for task in tasks]
    [torch.Size([5, 4]), torch.Size([5, 4])]
    """

    gate_kernel: Tensor
    noise_kernel: Tensor

    def __init__(
        self,
        num_tasks: int,
        expert_output_dims: Sequence[int] | Sequence[Sequence[int]],
        expert_activations: ActivationLike | Sequence[Any] = None,
        expert_initializers: InitializerLike | Sequence[Any] = "glorot_uniform",
        gate_type: Literal["softmax", "topk", "noise_topk"] = "softmax",
        top_k: int = 1,
        num_experts: int | None = None,
        **options: Unpack[MLPOptions],
    ) -> None:
        super().__init__()
        self.num_tasks = check_whole("MMoE.num_tasks", num_tasks)
        self.gate_type = check_choice("MMoE.gate_type", gate_type, ("softmax", "topk", "noise_topk"))
        dims_are_lists = bool(expert_output_dims) and not isinstance(expert_output_dims[0], int)
        self.num_experts = _count_experts(
            num_experts, expert_output_dims if dims_are_lists else None, expert_activations, expert_initializers
        )
        self.top_k = check_whole("MMoE.top_k", top_k)
        if self.top_k > self.num_experts:
            raise ConfigError(
                f"MMoE.top_k is {top_k}, num_experts {self.num_experts}; keep at most as many as there are"
            )
        dims = list(expert_output_dims) if dims_are_lists else [expert_output_dims] * self.num_experts
        widths = [check_dims("MMoE.expert_output_dims", entry) for entry in dims]
        if len({entry[-1] for entry in widths}) > 1:
            raise ConfigError(
                f"MMoE.expert_output_dims end in {[entry[-1] for entry in widths]}; the last widths must be equal"
            )
        acts = extend_as_list(expert_activations, self.num_experts)
        first_values = extend_as_list(expert_initializers, self.num_experts)
        self.experts = nn.ModuleList(
            MLP(*settings, **options) for settings in zip(widths, acts, first_values, strict=True)
        )
        self.declare("gate_kernel", "zeros")
        if gate_type == "noise_topk":
            self.declare("noise_kernel", "glorot_normal")
        self._recorded = LossRecord()

    def measure(self, x: Tensor, gate_input: Tensor | None = None) -> None:
        """Take the width of the gate's input."""
        width = (x if gate_input is None else gate_input).shape[-1]
        self.shape("gate_kernel", width, self.num_tasks * self.num_experts)
        if self.gate_type == "noise_topk":
            self.shape("noise_kernel", width, self.num_tasks * self.num_experts)

    def forward(self, x: Tensor, gate_input: Tensor | None = None) -> list[Tensor]:
        """Return one tensor per task."""
        gates = self.gates(x if gate_input is None else gate_input)
        outputs = torch.stack([expert(x) for expert in self.experts], dim=1)
        return list((gates @ outputs).unbind(1))

    def gates(self, gate_input: Tensor) -> Tensor:
        """Return the gates (B, tasks, experts)."""
        logits = gate_input @ self.gate_kernel
        if self.gate_type == "noise_topk" and self.training:
            logits = logits + torch.randn_like(logits) * F.softplus(gate_input @ self.noise_kernel)
        gates = torch.softmax(torch.unflatten(logits, -1, (self.num_tasks, self.num_experts)), dim=-1)
        if self.gate_type == "softmax":
            return gates
        gates = keep_top(gates, self.top_k)
        if self.training:
            self._record_importance(gates)
        return gates

    def _record_importance(self, gates: Tensor) -> None:
        importance = gates.sum(dim=0)
        mean = importance.mean(dim=1)
        # A batch without examples has no gates: its loss is 0, not NaN.
        mean = torch.where(mean == 0, torch.ones_like(mean), mean)
        spread = importance.var(dim=1, correction=0) / mean.square()
        self._recorded.values = {f"gate_importance_{task}": spread[task] for task in range(self.num_tasks)}

    def own_losses(self) -> dict[str, Tensor]:
        """Add the imbalance of the gates in the last training batch."""
        return super().own_losses() | self._recorded.values


def keep_top(gates: Tensor, top_k: int) -> Tensor:
    """Zero all but the ``top_k`` largest gates (ties are kept) and rescale the rest to sum 1.

    Shapes: (..., experts) in and out.

    >>> keep_top(torch.tensor([0.2, 0.3, 0.5]), 2).tolist()
    [0.0, 0.375, 0.625]
    """
    smallest_kept = gates.topk(top_k, dim=-1).values[..., -1:]
    kept = torch.where(gates >= smallest_kept, gates, torch.zeros_like(gates))
    return kept / kept.sum(dim=-1, keepdim=True)


def _count_experts(num_experts: int | None, *per_expert: Any) -> int:
    lengths = {len(value) for value in per_expert if isinstance(value, list | tuple)}
    if num_experts is not None:
        lengths.add(check_whole("MMoE.num_experts", num_experts))
    if not lengths:
        raise ConfigError("MMoE.num_experts is None and no argument is a list per expert; give num_experts")
    if len(lengths) > 1:
        raise ConfigError(f"MMoE's arguments speak of {sorted(lengths)} experts; lists must have num_experts entries")
    return lengths.pop()
