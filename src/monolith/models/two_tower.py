"""Two towers, one for users and one for items, that meet in an inner product: for retrieval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from monolith.core.errors import ConfigError
from monolith.data import Batch
from monolith.embedding import BatchSoftmax, Fp32, Ones
from monolith.features import Model, Output
from monolith.features.model import EmbeddingSlice
from monolith.layers import MLP, batch_softmax_loss
from monolith.models.fields import Fields, SparseInputs, TableOptions

__all__ = ["TwoTower"]


class TwoTower(Model):
    """score = u · w / temperature, u and w the outputs of two MLPs over the features, scaled to length 1.

    Shapes: u and w (B, hidden[-1]), score (B,). u and w are also outputs of ``predict``: ``user_vector`` and
    ``item_vector``.

    ``loss="sigmoid"`` learns labels of 0 and 1 with logit = score + c. ``loss="softmax"`` learns to find the item of a
    row with a positive label among all items of the batch (:func:`monolith.layers.batch_softmax_loss`); how often an
    item comes is estimated in a slice of its first feature and corrected for. Its predictions rank items and are not
    probabilities. See Yi et al., "Sampling-Bias-Corrected Neural Modeling", 2019.

    Args:
        user: Features of the first tower: names, or names with slots.
        item: Features of the second tower; the first of them is the item's id.
        dim: Length of the vectors of features.
        hidden: Widths of both towers; the last is the length of u and w.
        temperature: Divides the score; above 0.
        loss: Learned objective.
        head: Name of the output.
        tables: How rows are kept; see :class:`monolith.models.TableOptions`.
    """

    def __init__(
        self,
        *,
        user: SparseInputs,
        item: SparseInputs,
        dim: int = 16,
        hidden: Sequence[int] = (64, 32),
        temperature: float = 0.2,
        loss: Literal["sigmoid", "softmax"] = "sigmoid",
        head: str = "ctr",
        **tables: Unpack[TableOptions],
    ) -> None:
        super().__init__()
        if loss not in ("sigmoid", "softmax"):
            raise ConfigError(f"TwoTower.loss is {loss!r}; give 'sigmoid' or 'softmax'")
        if not temperature > 0:
            raise ConfigError(f"TwoTower.temperature is {temperature!r}; give a number above 0")
        self.head = head
        self.temperature = temperature
        self.user = Fields(self, sparse=user, dim=dim, options=tables)
        self.item = Fields(self, sparse=item, dim=dim, options=tables)
        self.user_tower = MLP(list(hidden), input_dim=len(self.user.names) * dim)
        self.item_tower = MLP(list(hidden), input_dim=len(self.item.names) * dim)
        self.offset: nn.Parameter | None = None
        self.interval: EmbeddingSlice | None = None
        if loss == "sigmoid":
            self.offset = nn.Parameter(torch.zeros(()))
        else:
            self.interval = self.embedding_slice(
                self.item.names[0], "interval", 1, optimizer=BatchSoftmax(), initializer=Ones(), compressor=Fp32()
            )

    @override
    def input_columns(self) -> dict[str, list[tuple[str, int]]]:
        return {"user_tower": self.user.columns, "item_tower": self.item.columns}

    @override
    def forward(self, batch: Batch) -> Output:
        user = F.normalize(self.user_tower(self.user.vectors(batch).flatten(1)), dim=1)
        item = F.normalize(self.item_tower(self.item.vectors(batch).flatten(1)), dim=1)
        score = (user * item).sum(dim=1) / self.temperature
        return Output(
            head=self.head,
            logits=score if self.offset is None else score + self.offset,
            label=batch.label[:, 0],
            loss=None if self.interval is None else self._softmax_loss(batch, user, item, self.interval(batch)),
            extra={"user_vector": user, "item_vector": item},
        )

    def _softmax_loss(self, batch: Batch, user: Tensor, item: Tensor, interval: Tensor) -> Tensor:
        known = torch.where(batch.label_mask[:, 0], batch.label[:, 0], torch.zeros_like(batch.label[:, 0]))
        return batch_softmax_loss(
            user, item, interval.squeeze(1), known * batch.weight, normalize=False, temperature=self.temperature
        )
