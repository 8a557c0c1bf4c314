"""The embedding path: plan a batch, pull its rows, fill the layouts; then sum the gradients and push them.

Arrays are NumPy; ``autograd`` wraps them for torch. Any store may hold the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from monolith import _native
from monolith.core.errors import SchemaMismatch
from monolith.data import Batch
from monolith.data.batch import ParsedIds
from monolith.embedding import EmbeddingStore
from monolith.embedding.store import Rows
from monolith.features.declaration import Declaration
from monolith.features.layouts import Layout

__all__ = ["EmbeddedBatch", "Embedder", "PulledBatch"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EmbeddedBatch(Batch):
    """A batch with the tensors of its layouts, the argument of ``Model.forward``."""

    layouts: Mapping[str, Any]
    """Layout name to tensor, or to a list of tensors."""

    @classmethod
    def of(cls, batch: Batch, layouts: Mapping[str, Any]) -> EmbeddedBatch:
        """Add layouts to a batch."""
        return cls(**{each.name: getattr(batch, each.name) for each in fields(Batch)}, layouts=layouts)


@dataclass(frozen=True, slots=True, eq=False)
class PulledBatch:
    """A batch, its plan, and one row per unique id of each table, as they were when pulled."""

    batch: Batch
    plan: _native.StepPlan
    rows: Sequence[Rows]
    """Per table in name order, (U, D)."""


class Embedder:
    """Turns ids into layouts and gradients into updates, for one declaration and one store."""

    def __init__(self, declaration: Declaration, store: EmbeddingStore) -> None:
        self.declaration = declaration
        self.store = store
        self.tensors = declaration.tensors()
        self.layouts = [_filled_by(declaration.layouts[name]) for name in sorted(declaration.layouts)]
        """Per layout: name, number of its ``tensors``, and whether it is a list."""
        self._tables = declaration.tables
        self._features = declaration.feature_names
        self._kernel = declaration.kernel()

    def plan(self, batch: Batch) -> _native.StepPlan:
        """Find the unique ids of a batch.

        Raises:
            SchemaMismatch: The batch lacks a feature of the model, or has another width of it, or its lists are not
                sound.
        """
        ids = batch.ids
        try:
            if isinstance(ids, ParsedIds):
                places = ids.places(self._features)
            else:
                lists = [ids[name] for name in self._features]
        except KeyError as error:
            known = ", ".join(batch.ids) or "none"
            raise SchemaMismatch(
                f"the batch has no feature {error.args[0]!r}, which the model declares; it has {known}. Read the data "
                "with schema=model.declaration.schema()"
            ) from None
        self._check_dense(batch)
        if isinstance(ids, ParsedIds):
            return self._kernel.plan_of(ids.data, places)
        return self._kernel.plan(
            batch.size,
            [np.asarray(each.values) for each in lists],
            [np.asarray(each.offsets) for each in lists],
            [each.shared for each in lists],
        )

    def _check_dense(self, batch: Batch) -> None:
        for name, feature in self.declaration.dense.items():
            if name not in batch.dense:
                known = ", ".join(batch.dense) or "none"
                raise SchemaMismatch(
                    f"the batch has no dense feature {name!r}, which the model declares; it has {known}. Read the data "
                    "with schema=model.declaration.schema()"
                )
            shape = getattr(batch.dense[name], "shape", None)  # strings have none
            if shape is not None and tuple(shape) != (batch.size, feature.width):
                raise SchemaMismatch(
                    f"dense feature {name!r} has shape {tuple(shape)}, the model declares width {feature.width} for a "
                    f"batch of {batch.size}; read the data with schema=model.declaration.schema()"
                )

    def pull(self, batch: Batch) -> PulledBatch:
        """Plan a batch and pull its rows in one call of the store."""
        plan = self.plan(batch)
        found = self.store.pull({name: plan.ids(place) for place, name in enumerate(self._tables)})
        return PulledBatch(batch, plan, [found[name] for name in self._tables])

    def push(self, plan: _native.StepPlan, grads: Sequence[Rows], *, time_s: int, step: int) -> None:
        """Push the gradient of every row in one call of the store."""
        places = list(enumerate(self._tables))
        self.store.push(
            {name: plan.ids(place) for place, name in places},
            {name: grads[place] for place, name in places},
            counts={name: plan.counts(place) for place, name in places},
            time_s=time_s,
            step=step,
        )


def _filled_by(layout: Layout) -> tuple[str, int, bool]:
    return layout.name, len(layout.tensors()), layout.out is None and not layout.is_single
