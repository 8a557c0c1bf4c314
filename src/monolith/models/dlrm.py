"""DLRM: inner products of all features, the numbers among them, below a tower."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor
from typing_extensions import override

from monolith.core.errors import ConfigError
from monolith.data import Batch
from monolith.features import Model, Output
from monolith.layers import MLP
from monolith.models.fields import DenseInputs, Fields, SparseInputs, TableOptions

__all__ = ["DLRM"]


class DLRM(Model):
    """d = MLP(x); logit = MLP([d, e_i · e_j for all i < j]) with e = (v_1, ..., v_n, d).

    Without dense features there is no d. Shapes: e (B, n + 1, dim), logit (B,). See Naumov et al., "Deep Learning
    Recommendation Model", 2019.

    Args:
        sparse: Features with a vector each: names, or names with slots.
        dense: Features that are numbers: names, or names with widths.
        dim: Length of the vectors.
        bottom: Hidden widths of the tower over the numbers; its last layer of ``dim`` is added.
        hidden: Widths of the upper tower before its last layer.
        head: Name of the output.
        tables: How rows are kept; see :class:`monolith.models.TableOptions`.
    """

    pairs: Tensor

    def __init__(
        self,
        *,
        sparse: SparseInputs,
        dense: DenseInputs = (),
        dim: int = 16,
        bottom: Sequence[int] = (64,),
        hidden: Sequence[int] = (128, 64),
        head: str = "ctr",
        **tables: Unpack[TableOptions],
    ) -> None:
        super().__init__()
        self.head = head
        self.fields = Fields(self, sparse=sparse, dense=dense, dim=dim, options=tables)
        self.bottom: MLP | None = None
        if self.fields.width:
            self.bottom = MLP([*bottom, dim], ["relu"] * (len(bottom) + 1), input_dim=self.fields.width)
        count = len(self.fields.names) + (self.bottom is not None)
        if count < 2:
            raise ConfigError(
                f"DLRM.sparse is {sparse!r} without dense features, expected two features to pair; name another one"
            )
        self.register_buffer("pairs", torch.triu_indices(count, count, 1), persistent=False)
        width = count * (count - 1) // 2 + (dim if self.bottom is not None else 0)
        self.tower = MLP([*hidden, 1], input_dim=width)

    @override
    def input_columns(self) -> dict[str, list[tuple[str, int]]]:
        if self.bottom is None:
            return {"tower": _pairs_of(self.fields.names)}
        tower = [("(bottom)", self.fields.dim), *_pairs_of([*self.fields.names, "(bottom)"])]
        return {"bottom": self.fields.number_columns, "tower": tower}

    @override
    def forward(self, batch: Batch) -> Output:
        vectors = self.fields.vectors(batch)
        parts: list[Tensor] = []
        if self.bottom is not None:
            numbers: Tensor = self.bottom(self.fields.numbers(batch))
            parts.append(numbers)
            vectors = torch.cat([vectors, numbers.unsqueeze(1)], dim=1)
        products = vectors @ vectors.transpose(1, 2)
        parts.append(products[:, self.pairs[0], self.pairs[1]])
        logits: Tensor = self.tower(torch.cat(parts, dim=1))
        return Output(head=self.head, logits=logits.squeeze(1), label=batch.label[:, 0])


def _pairs_of(names: list[str]) -> list[tuple[str, int]]:
    """Return one column per pair of vectors, as ``triu_indices`` orders them; the name has no order."""
    return [(" * ".join(sorted(pair)), 1) for pair in itertools.combinations(names, 2)]
