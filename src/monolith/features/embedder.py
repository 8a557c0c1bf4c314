"""``Embedder``: plans a batch of a model, pulls its rows, and pushes their gradients.

``HostEmbedder`` plans in host memory, for any ``EmbeddingStore``. A ``LayoutRead`` pools rows and sums gradients, where
the store has its rows, and ``autograd`` calls it. This module does not import torch: tensors are duck-typed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np

from monolith import _native
from monolith.core.errors import ConfigError, SchemaMismatch
from monolith.core.fid import ValueType
from monolith.data import Batch
from monolith.data.batch import ParsedIds
from monolith.embedding import EmbeddingStore
from monolith.embedding.layout_read import LayoutRead, LayoutReader, LayoutStore
from monolith.embedding.store import Ids
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
    read: LayoutRead
    """Fills layouts from the rows, and takes one push."""

    @property
    def plan(self) -> _native.StepPlan:
        """The unique ids of the batch, and where each of them occurs."""
        return self.read.plan

    @property
    def rows(self) -> Sequence[Tensor]:
        """Per table in name order, (U, D)."""
        return self.read.rows


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

    def push(self, pulled: PulledBatch, grads: Sequence[Tensor], *, time_s: int, step: int) -> None:
        """Update the rows of a batch by their gradients, by one call of the store."""
        ...


class HostEmbedder:
    """The ``Embedder`` that plans in host memory, against one store."""

    def __init__(self, declaration: Declaration, store: EmbeddingStore) -> None:
        self.declaration = declaration
        self.store = store
        self.tensors = declaration.tensors()
        self.layouts = [_describe_layout(declaration.layouts[name]) for name in sorted(declaration.layouts)]
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
        return PulledBatch(batch, self._reader.read(self.plan(batch), before_push=before_push))

    def push(self, pulled: PulledBatch, grads: Sequence[Tensor], *, time_s: int, step: int) -> None:
        """Update the rows of a batch by their gradients, by one call of the store."""
        pulled.read.push(grads, time_s=time_s, step=step, dropped=self.blocked())

    @cached_property
    def _reader(self) -> LayoutReader:
        if isinstance(self.store, LayoutStore):
            return self.store.open_layouts(self.declaration.wiring())
        from monolith.features.host_read import HostReader  # imports torch

        return HostReader(self.store, self.declaration.wiring())


def _describe_layout(layout: Layout) -> tuple[str, int, bool]:
    return layout.name, len(layout.tensors()), layout.out is None and not layout.is_single
