"""DCN-v2: cross layers beside, or below, a tower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Unpack

import torch
from torch import Tensor
from typing_extensions import override

from monolith.core.errors import ConfigError
from monolith.data import Batch
from monolith.features import Model, Output
from monolith.layers import DCN, MLP, Dense
from monolith.models.fields import DenseInputs, Fields, SparseInputs, TableOptions

__all__ = ["DCNv2"]


class DCNv2(Model):
    """x_0 = [v_1, ..., v_n, x]; x_{l+1} = x_0 ∘ (W_l x_l + b_l) + x_l; logit = w · [x_L, MLP(x_0)], or w · MLP(x_L).

    Shapes: x_0 and x_l (B, n · dim + numbers), logit (B,). See Wang et al., "DCN V2", 2021.

    Args:
        sparse: Features with a vector each: names, or names with slots.
        dense: Features that are numbers: names, or names with widths.
        dim: Length of the vectors.
        cross_layers: L, the number of cross layers.
        low_rank: 0 for full matrices W; else their rank, in a mixture of ``experts``.
        experts: Experts of the low-rank form.
        hidden: Widths of the tower.
        structure: ``"parallel"``: the tower reads x_0; ``"stacked"``: it reads x_L.
        head: Name of the output.
        tables: How rows are kept; see :class:`monolith.models.TableOptions`.
    """

    def __init__(
        self,
        *,
        sparse: SparseInputs,
        dense: DenseInputs = (),
        dim: int = 16,
        cross_layers: int = 2,
        low_rank: int = 0,
        experts: int = 4,
        hidden: Sequence[int] = (128, 64),
        structure: Literal["parallel", "stacked"] = "parallel",
        head: str = "ctr",
        **tables: Unpack[TableOptions],
    ) -> None:
        super().__init__()
        if structure not in ("parallel", "stacked"):
            raise ConfigError(f"DCNv2.structure is {structure!r}; give 'parallel' or 'stacked'")
        self.head = head
        self.is_stacked = structure == "stacked"
        self.fields = Fields(self, sparse=sparse, dense=dense, dim=dim, options=tables)
        if low_rank:
            self.cross = DCN(cross_layers, "mixed", num_experts=experts, low_rank=low_rank)
        else:
            self.cross = DCN(cross_layers, "matrix")
        width = len(self.fields.names) * dim + self.fields.width
        self.tower = MLP(list(hidden), ["relu"] * len(hidden), input_dim=width)
        self.hidden_width = hidden[-1]
        self.last = Dense(1, input_dim=hidden[-1] + (0 if self.is_stacked else width))

    @override
    def input_columns(self) -> dict[str, list[tuple[str, int]]]:
        columns = self.fields.columns
        hidden = ("(tower)", self.hidden_width)
        return {"cross": columns, "tower": columns, "last": [hidden] if self.is_stacked else [*columns, hidden]}

    @override
    def forward(self, batch: Batch) -> Output:
        x0 = torch.cat([self.fields.vectors(batch).flatten(1), self.fields.numbers(batch)], dim=1)
        crossed: Tensor = self.cross(x0)
        if self.is_stacked:
            logits: Tensor = self.last(self.tower(crossed))
        else:
            logits = self.last(torch.cat([crossed, self.tower(x0)], dim=1))
        return Output(head=self.head, logits=logits.squeeze(1), label=batch.label[:, 0])
