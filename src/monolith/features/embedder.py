"""The embedding path: plan a batch, pull its rows, fill the layouts; and back: scatter gradients, push them.

``Embedder`` is the seam between a model and its tables. ``HostEmbedder`` implements it in host memory, for any
``EmbeddingStore``; rows on another device need another implementation. This module does not import torch: tensors are
duck-typed, and ``autograd`` calls ``fill`` and ``scatter`` from torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, Self

import numpy as np

from monolith import _native
from monolith.core.errors import ConfigError, SchemaMismatch
from monolith.core.fid import ValueType
from monolith.data import Batch
from monolith.data.batch import ParsedIds
from monolith.embedding import EmbeddingStore, MultiTable
from monolith.embedding.multi_table import PlannedRows
from monolith.embedding.store import Ids, Rows
from monolith.features.declaration import Declaration
from monolith.features.layouts import Layout, LayoutTensor

__all__ = ["EmbeddedBatch", "Embedder", "HostEmbedder", "PulledBatch"]

Tensor = Any
"""A ``torch.Tensor``."""


class _DenseInputs(dict[str, Any]):
    """Dense inputs of ``forward`` by name."""

    def __missing__(self, name: str) -> Any:
        known = ", ".join(map(repr, self)) or "none"
        raise ConfigError(
            f"dense feature {name!r} is not declared; call self.dense_feature({name!r}) in __init__ of the model. "
            f"Declared: {known}"
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EmbeddedBatch(Batch):
    """A batch with the tensors of its layouts: the argument of ``Model.forward``."""

    layouts: Mapping[str, Any]
    """Layout name to tensor, or to a list of tensors."""

    @classmethod
    def of(cls, batch: Batch, layouts: Mapping[str, Any]) -> Self:
        """Add layouts to a batch."""
        columns = {each.name: getattr(batch, each.name) for each in fields(Batch)}
        if type(batch.dense) is dict:
            columns["dense"] = _DenseInputs(batch.dense)
        return cls(**columns, layouts=layouts)


@dataclass(frozen=True, slots=True, eq=False)
class PulledBatch:
    """A batch, its plan, and one row per unique id of each table, as they were when pulled."""

    batch: Batch
    plan: _native.StepPlan
    rows: Sequence[Rows]
    """Per table in name order, (U, D)."""
    places: PlannedRows | None = None
    """Places of the rows in tables of this process, for one push."""


class Embedder(Protocol):
    """Turns ids into layouts and gradients into updates of rows, by one declaration.

    B = batch size, U = unique ids of a table in a batch, D = width of its rows, W = width of a layout tensor.
    """

    store: EmbeddingStore
    """Holds the rows."""

    @property
    def declaration(self) -> Declaration:
        """The features and layouts of the model."""
        ...

    @property
    def device(self) -> str:
        """Device of the rows and of the filled layouts."""
        ...

    @property
    def tensors(self) -> Sequence[LayoutTensor]:
        """The tensors of all layouts."""
        ...

    @property
    def layouts(self) -> Sequence[tuple[str, int, bool]]:
        """Per layout: its name, its number of ``tensors``, and whether the layout is the list of them."""
        ...

    def plan(self, batch: Batch) -> _native.StepPlan:
        """Return the unique ids of a batch, and where each of them occurs.

        Raises:
            SchemaMismatch: The batch lacks a feature of the model, or a feature has another width.
        """
        ...

    def pull(self, batch: Batch, *, before_push: bool = False) -> PulledBatch:
        """Plan a batch and pull its rows, by one call of the store; ``before_push`` prepares their update."""
        ...

    def fill(self, plan: _native.StepPlan, rows: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Fill the tensors of all layouts from rows.

        Args:
            plan: The plan of the batch.
            rows: Per table, (U, D).
            outputs: Per layout tensor, (B, W); overwritten.
        """
        ...

    def scatter(
        self, plan: _native.StepPlan, grads: Sequence[Tensor | None], rows: Sequence[Tensor]
    ) -> Sequence[float]:
        """Sum the gradients of all layout tensors per unique id; return the sum of squares per table.

        Args:
            plan: The plan of the batch.
            grads: Per layout tensor, (B, W); None = zero.
            rows: Per table, (U, D); overwritten.
        """
        ...

    def push(self, pulled: PulledBatch, grads: Sequence[Tensor], *, time_s: int, step: int) -> None:
        """Update the rows of a batch by their gradients, by one call of the store."""
        ...


class HostEmbedder:
    """The ``Embedder`` in host memory, against one store."""

    device = "cpu"

    def __init__(self, declaration: Declaration, store: EmbeddingStore) -> None:
        self.declaration = declaration
        self.store = store
        self.tensors = declaration.tensors()
        self.layouts = [_describe_layout(declaration.layouts[name]) for name in sorted(declaration.layouts)]
        self._tables = declaration.tables
        self._inputs = [declaration.features[name].input for name in declaration.feature_names]
        self._kernel = declaration.kernel()
        self.blocked: Callable[[], Mapping[str, Ids]] = dict
        """Returns the ids by table whose updates are dropped."""
        self._recorded: Mapping[str, ValueType] = {}

    def plan(self, batch: Batch) -> _native.StepPlan:
        """Return the unique ids of a batch, and where each of them occurs.

        Raises:
            SchemaMismatch: The batch lacks a feature of the model, a feature has another width, or its lists are
                invalid.
        """
        ids = batch.ids
        try:
            if isinstance(ids, ParsedIds):
                places = ids.places(self._inputs)
            else:
                lists = [ids[name] for name in self._inputs]
        except KeyError as error:
            known = ", ".join(batch.ids) or "none"
            raise SchemaMismatch(
                f"the batch has no feature {error.args[0]!r}, which the model declares; it has {known}. Read the data "
                "with schema=model.declaration.schema()"
            ) from None
        self._check_dense(batch)
        if batch.value_types is not self._recorded:
            self.declaration.record_value_types(batch.value_types)
            self._recorded = batch.value_types
            if not batch.value_types:  # no parser made the ids
                self._record_ready_made(batch)
        if isinstance(ids, ParsedIds):
            return self._kernel.plan_of(ids.data, places)
        return self._kernel.plan(
            batch.size,
            [np.asarray(each.values) for each in lists],
            [np.asarray(each.offsets) for each in lists],
            [each.shared for each in lists],
        )

    def _record_ready_made(self, batch: Batch) -> None:
        known = self.declaration.value_types
        names = [name for name in self._inputs if name not in known and len(batch.ids[name].values)]
        self.declaration.record_value_types(dict.fromkeys(names, "fid"))

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

    def pull(self, batch: Batch, *, before_push: bool = False) -> PulledBatch:
        """Plan a batch and pull its rows, by one call of the store; ``before_push`` keeps their places for ``push``."""
        plan = self.plan(batch)
        if before_push and type(self.store) is MultiTable:  # a subclass may override pull and push
            places = self.store.pull_planned(plan, self._tables)
            return PulledBatch(batch, plan, places.rows, places)
        rows = self.store.pull({name: plan.ids(number) for number, name in enumerate(self._tables)})
        return PulledBatch(batch, plan, [rows[name] for name in self._tables])

    def fill(self, plan: _native.StepPlan, rows: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Fill the tensors of all layouts from rows, by one native call."""
        plan.pool([each.numpy() for each in rows], [each.numpy() for each in outputs])

    def scatter(
        self, plan: _native.StepPlan, grads: Sequence[Tensor | None], rows: Sequence[Tensor]
    ) -> Sequence[float]:
        """Sum the gradients of all layout tensors per unique id, by one native call."""
        arrays = [None if each is None else each.contiguous().numpy() for each in grads]
        return plan.scatter(arrays, [each.numpy() for each in rows])

    def push(self, pulled: PulledBatch, grads: Sequence[Tensor], *, time_s: int, step: int) -> None:
        """Update the rows of a batch by their gradients, by one call of the store."""
        dropped = self.blocked()
        if pulled.places is not None and not dropped:
            pulled.places.push([each.contiguous().numpy() for each in grads], time_s=time_s, step=step)
            return
        plan, tables = pulled.plan, list(enumerate(self._tables))
        ids = {name: plan.ids(number) for number, name in tables}
        rows = {name: grads[number].numpy() for number, name in tables}
        counts = {name: plan.counts(number) for number, name in tables}
        for name, blocked in dropped.items():
            if name in ids:
                kept = ~np.isin(ids[name], blocked)
                ids[name], rows[name], counts[name] = ids[name][kept], rows[name][kept], counts[name][kept]
        self.store.push(ids, rows, counts=counts, time_s=time_s, step=step)


def _describe_layout(layout: Layout) -> tuple[str, int, bool]:
    return layout.name, len(layout.tensors()), layout.out is None and not layout.is_single
