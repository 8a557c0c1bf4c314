"""DeepFM: biases, all pairs of features, and a tower, added up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from torch import Tensor
from typing_extensions import override

from monolith.data import Batch
from monolith.features import Model, Output
from monolith.layers import FM, MLP
from monolith.models.fields import DenseInputs, Fields, SparseInputs, TableOptions, bias_slice

__all__ = ["DeepFM"]


class DeepFM(Model):
    """logit = Σ_f b_f + Σ_{f<g} v_f · v_g + MLP([v_1, ..., v_n, x]).

    Shapes: v (B, n, dim), x (B, numbers), logit (B,). See Guo et al., "DeepFM", 2017.

    Args:
        sparse: Features with a vector v_f and a bias b_f each: names, or names with slots.
        dense: Features that are numbers: names, or names with widths. x is their signed logarithm.
        dim: Length of the vectors.
        hidden: Widths of the tower before its last layer.
        head: Name of the output.
        tables: How rows are kept; see :class:`monolith.models.TableOptions`.

    >>> model = DeepFM(sparse=["user_id", "item_id"], dense=["price"], dim=8, hidden=[16])
    >>> batch = Batch.from_arrays(
    ...     ids={"user_id": [[7], [8]], "item_id": [[1], [2]]}, dense={"price": [[9.5], [20.0]]}, label=[1, 0])
    >>> model(batch).logits.shape
    torch.Size([2])
    """

    def __init__(
        self,
        *,
        sparse: SparseInputs,
        dense: DenseInputs = (),
        dim: int = 16,
        hidden: Sequence[int] = (128, 64),
        head: str = "ctr",
        **tables: Unpack[TableOptions],
    ) -> None:
        super().__init__()
        self.head = head
        self.fields = Fields(self, sparse=sparse, dense=dense, dim=dim, options=tables)
        self.bias = bias_slice(self, self.fields.names, tables)
        self.pairs = FM()
        self.tower = MLP([*hidden, 1], input_dim=len(self.fields.names) * dim + self.fields.width)

    @override
    def input_columns(self) -> dict[str, list[tuple[str, int]]]:
        return {"tower": self.fields.columns}

    @override
    def forward(self, batch: Batch) -> Output:
        pairs, vectors = self.pairs.with_features(self.fields.vectors(batch))
        deep: Tensor = self.tower([vectors.flatten(1), self.fields.numbers(batch)])
        logits: Tensor = self.bias(batch) + pairs + deep
        return Output(head=self.head, logits=logits.squeeze(1), label=batch.label[:, 0])
