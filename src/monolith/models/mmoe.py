"""MMoE: several heads that share experts, each through a separate gate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn
from typing_extensions import override

from monolith import layers
from monolith.core.errors import ConfigError
from monolith.data import Batch
from monolith.features import Model, Output
from monolith.models.fields import DenseInputs, Fields, SparseInputs, TableOptions, bias_slice

__all__ = ["MMoE"]


class MMoE(Model):
    """logit_k = Σ_f b_f + MLP_k(Σ_e g_ke expert_e(z)) with z = [v_1, ..., v_n, x] and g_k = softmax(z G_k).

    Shapes: z (B, n · dim + numbers), one logit (B,) per head; head k learns from column k of the labels, where that
    is known. The experts are :class:`monolith.layers.MMoE`. See Ma et al., "Multi-gate Mixture-of-Experts", 2018.

    Args:
        sparse: Features with a vector and a bias each: names, or names with slots. The bias is the same for all heads.
        heads: Names of the outputs, one per column of the labels.
        dense: Features that are numbers: names, or names with widths.
        dim: Length of the vectors.
        experts: How many experts.
        expert_hidden: Widths of an expert.
        hidden: Widths of each head's tower before its last layer.
        tables: How rows are kept; see :class:`monolith.models.TableOptions`.
    """

    def __init__(
        self,
        *,
        sparse: SparseInputs,
        heads: Sequence[str] = ("click", "like"),
        dense: DenseInputs = (),
        dim: int = 16,
        experts: int = 4,
        expert_hidden: Sequence[int] = (64, 32),
        hidden: Sequence[int] = (16,),
        **tables: Unpack[TableOptions],
    ) -> None:
        if isinstance(heads, str) or not heads or len(set(heads)) != len(heads):
            raise ConfigError(f"MMoE.heads is {heads!r}; give a list of different names, one per label")
        super().__init__(labels=len(heads))
        self.heads = list(heads)
        self.fields = Fields(self, sparse=sparse, dense=dense, dim=dim, options=tables)
        self.bias = bias_slice(self, self.fields.names, tables)
        relus = ["relu"] * len(expert_hidden)
        self.experts = layers.MMoE(len(heads), list(expert_hidden), [relus] * experts, num_experts=experts)
        self.towers = nn.ModuleList(layers.MLP([*hidden, 1], input_dim=expert_hidden[-1]) for _ in heads)

    @override
    def input_columns(self) -> dict[str, list[tuple[str, int]]]:
        return {"experts": self.fields.columns}

    @override
    def forward(self, batch: Batch) -> list[Output]:
        z = torch.cat([self.fields.vectors(batch).flatten(1), self.fields.numbers(batch)], dim=1)
        bias: Tensor = self.bias(batch)
        mixed: list[Tensor] = self.experts(z)
        return [
            Output(head=head, logits=(tower(task) + bias).squeeze(1), label=batch.label[:, column])
            for column, (head, tower, task) in enumerate(zip(self.heads, self.towers, mixed, strict=True))
        ]
