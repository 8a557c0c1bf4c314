"""DIN: a tower that sees the part of a history which concerns the item."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor
from typing_extensions import override

from monolith import layers
from monolith.data import Batch
from monolith.features import Model, Output
from monolith.models.fields import DenseInputs, SparseInput, SparseInputs, TableOptions
from monolith.models.history import HistoryFields

__all__ = ["DIN"]


class DIN(Model):
    """interest = Σ_t a(item, h_t) h_t; logit = MLP([v_1, ..., v_n, item, x, interest, item ∘ interest]).

    a is :class:`monolith.layers.DIN`, with scores divided by √dim. Shapes: h (B, T, dim), interest (B, dim), logit
    (B,). See Zhou et al., "Deep Interest Network", 2018.

    Args:
        sparse: Features with a vector each, beside item and history: names, or names with slots.
        item: The target: a feature with one id.
        history: Earlier items, oldest first; it shares the rows of the item.
        max_history: T, the items that count.
        dense: Features that are numbers: names, or names with widths.
        dim: Length of the vectors.
        attention: Hidden widths of the network that scores an item of the history.
        hidden: Widths of the tower before its last layer.
        head: Name of the output.
        tables: How rows are kept; see :class:`monolith.models.TableOptions`.

    >>> model = DIN(sparse=["user_id"], item="item_id", history="history", max_history=3, dim=8)
    >>> batch = Batch.from_arrays(
    ...     ids={"user_id": [[7], [8]], "item_id": [[1], [2]], "history": [[5, 6], []]}, label=[1, 0])
    >>> model(batch).logits.shape
    torch.Size([2])
    """

    def __init__(
        self,
        *,
        sparse: SparseInputs = (),
        item: SparseInput,
        history: SparseInput,
        max_history: int = 50,
        dense: DenseInputs = (),
        dim: int = 16,
        attention: Sequence[int] = (32,),
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
        self.attention = layers.DIN([*attention, 1], "sigmoid", decay=True)
        self.tower = layers.MLP([*hidden, 1], input_dim=self.inputs.width + 2 * dim)

    @override
    def input_columns(self) -> dict[str, list[tuple[str, int]]]:
        products = [("(interest)", self.inputs.fields.dim), ("(item * interest)", self.inputs.fields.dim)]
        return {"tower": [*self.inputs.fields.columns, *products]}

    @override
    def forward(self, batch: Batch) -> Output:
        item = self.inputs.item(batch)
        interest: Tensor = self.attention(item, *self.inputs.history(batch))
        logits: Tensor = self.tower(torch.cat([self.inputs.flat(batch), interest, item * interest], dim=1))
        return Output(head=self.head, logits=logits.squeeze(1), label=batch.label[:, 0])
