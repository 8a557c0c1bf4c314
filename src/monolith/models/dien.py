"""DIEN: a tower that sees how the interest in the item grew along a history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Unpack

import torch
from torch import Tensor
from typing_extensions import override

from monolith import layers
from monolith.data import Batch
from monolith.features import Model, Output
from monolith.models.fields import DenseInputs, SparseInput, SparseInputs, TableOptions
from monolith.models.history import HistoryFields

__all__ = ["DIEN"]


class DIEN(Model):
    """interest = last state of a GRU under attention, over a GRU over the history; logit = MLP of it and all else.

    The two GRUs are :class:`monolith.layers.DIEN`; logit = MLP([v_1, ..., v_n, item, x, interest, item ∘ interest]).
    Shapes: history (B, T, dim), interest (B, dim), logit (B,). A step costs time in proportion to T. See Zhou et al.,
    "Deep Interest Evolution Network", 2019; its auxiliary loss is not part of this.

    Args:
        sparse: Features with a vector each, beside item and history: names, or names with slots.
        item: The target: a feature with one id.
        history: Earlier items, oldest first; it shares the rows of the item.
        max_history: T, the items that count.
        dense: Features that are numbers: names, or names with widths.
        dim: Length of the vectors, and of the states.
        gru: The form of the second GRU: ``"AGRU"`` or ``"AUGRU"``.
        hidden: Widths of the tower before its last layer.
        head: Name of the output.
        tables: How rows are kept; see :class:`monolith.models.TableOptions`.
    """

    def __init__(
        self,
        *,
        sparse: SparseInputs = (),
        item: SparseInput,
        history: SparseInput,
        max_history: int = 20,
        dense: DenseInputs = (),
        dim: int = 16,
        gru: Literal["AGRU", "AUGRU"] = "AUGRU",
        hidden: Sequence[int] = (128, 64),
        head: str = "ctr",
        **tables: Unpack[TableOptions],
    ) -> None:
        super().__init__()
        self.head = head
        self.inputs = HistoryFields(
            self,
            sparse=sparse,
            item=item,
            history=history,
            max_history=max_history,
            dense=dense,
            dim=dim,
            options=tables,
        )
        self.evolution = layers.DIEN(dim, gru, activation="tanh", initializer="glorot_uniform")
        self.tower = layers.MLP([*hidden, 1], input_dim=self.inputs.width + 2 * dim)

    @override
    def input_columns(self) -> dict[str, list[tuple[str, int]]]:
        products = [("(interest)", self.inputs.fields.dim), ("(item * interest)", self.inputs.fields.dim)]
        return {"tower": [*self.inputs.fields.columns, *products]}

    @override
    def forward(self, batch: Batch) -> Output:
        item = self.inputs.item(batch)
        interest: Tensor = self.evolution(item, *self.inputs.history(batch))
        logits: Tensor = self.tower(torch.cat([self.inputs.flat(batch), interest, item * interest], dim=1))
        return Output(head=self.head, logits=logits.squeeze(1), label=batch.label[:, 0])
