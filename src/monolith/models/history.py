"""An item and the history of such items: the inputs of sequence models besides their other fields."""

from __future__ import annotations

import torch
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.data import Batch
from monolith.features import Model
from monolith.models.fields import (
    DenseInputs,
    Fields,
    SparseInput,
    SparseInputs,
    TableOptions,
    sparse_input,
    sparse_inputs,
    vector_slice,
)

__all__ = ["HistoryFields"]


class HistoryFields:
    """Fields of a model, one of which is the target, and a history that shares the target's rows.

    Args:
        model: Model on which they are declared.
        sparse: The other features; the item may be among them, the history not.
        item: The target: one id per example.
        history: Ids of earlier items, oldest first.
        max_history: Items of the history that count; ids beyond are not read.
        dense: The features that are numbers.
        dim: Length of the vectors.
        options: How rows are kept.
    """

    def __init__(
        self,
        model: Model,
        *,
        sparse: SparseInputs,
        item: SparseInput,
        history: SparseInput,
        max_history: int,
        dense: DenseInputs,
        dim: int,
        options: TableOptions,
    ) -> None:
        label = type(model).__name__
        target, past = sparse_input(item), sparse_input(history)
        if max_history < 1:
            raise ConfigError(f"{label}.max_history is {max_history}; give a whole number of at least 1")
        others = [feature for feature in sparse_inputs(sparse) if feature.name != target.name]
        if past.name == target.name or past.name in [feature.name for feature in others]:
            raise ConfigError(f"{label}.history is {past.name!r}, which has another role too; give each feature one")
        # The item is last, so its vector is easily found.
        self.fields = Fields(model, sparse=[*others, target], dense=dense, dim=dim, options=options)
        model.embedding_feature(
            past.name,
            shared_with=target.name,
            max_sequence_length=max_history,
            column=past.column,
            value_type=past.value_type,
            hash_wide=past.hash_wide or target.hash_wide,  # equal values need equal ids
        )
        self._history = vector_slice(model, [past.name], dim, options)
        self.width = len(self.fields.names) * dim + self.fields.width
        """Columns of ``flat``."""

    def item(self, batch: Batch) -> Tensor:
        """Return the vector of the target: (B, dim)."""
        return self.fields.vectors(batch)[:, -1]

    def history(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the vectors of the history, (B, T, dim), and where there is one: (B, T), 0 or 1.

        An item without a row is as none: it is all zeros, like the places beyond the end of a history.
        """
        keys: Tensor = self._history(batch)
        return keys, keys.ne(0).any(dim=2).to(keys.dtype)

    def flat(self, batch: Batch) -> Tensor:
        """Return all fields except the history, side by side: (B, width)."""
        return torch.cat([self.fields.vectors(batch).flatten(1), self.fields.numbers(batch)], dim=1)
