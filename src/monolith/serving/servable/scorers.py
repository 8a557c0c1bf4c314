"""Scorers: batches to outputs, with rows of this process (``LocalScorer``) or of other servers (``RemoteScorer``).

Both plan a batch and collect the inputs of the dense program through ``ModelInputs``. Thread safe.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
from typing_extensions import override

from monolith import _native
from monolith.data import Batch
from monolith.embedding import EmbeddingStore
from monolith.embedding.store import Rows
from monolith.features import Declaration, HostEmbedder
from monolith.serving.servable.cut_state import CutState
from monolith.serving.servable.dense_states import DenseState
from monolith.serving.servable.parts import Arrays, EntryRows, OwnProgram, PartialRows
from monolith.serving.versions.loaded_model import DegradedOutputs

__all__ = ["LocalScorer", "ModelInputs", "RemoteScorer", "Scorer"]

_FIELDS = ("label", "label_mask", "weight", "sample_rate", "event_time_s", "uid")

# Successive versions of a model have equal declarations.
_read_declaration = functools.lru_cache(maxsize=64)(Declaration.from_json)


class ModelInputs:
    """Plans batches and collects the inputs of a dense program, by one declaration.

    Args:
        declaration: Declaration of the model, as in a manifest.

    Attributes:
        declaration: The parsed declaration.
        tables: Names of the tables of a plan, in order.
    """

    def __init__(self, declaration: Mapping[str, Any]) -> None:
        self.declaration = _read_declaration(json.dumps(declaration))
        self.tables = self.declaration.tables
        self._tensors = self.declaration.tensors()
        # Plans only: a scorer looks rows up itself, at one cut.
        self._planner = HostEmbedder(self.declaration, cast("EmbeddingStore", None))

    def plan(self, batch: Batch) -> _native.StepPlan:
        """Return the unique ids of a batch, and where each of them occurs."""
        return self._planner.plan(batch)

    def make_layouts(self, plan: _native.StepPlan) -> list[Rows]:
        """Return uninitialized layouts for a plan."""
        return [np.empty((plan.rows, tensor.width), np.float32) for tensor in self._tensors]

    def collect(self, batch: Batch, layouts: Sequence[Rows]) -> Arrays:
        """Return the inputs of the dense program by name."""
        inputs: Arrays = {
            f"layout/{tensor.name}": rows.reshape(-1, *tensor.shape)
            for tensor, rows in zip(self._tensors, layouts, strict=True)
        }
        for feature in self.declaration.dense.values():
            if feature.dtype != "bytes":
                inputs[f"dense/{feature.name}"] = batch.dense[feature.name]
        return inputs | {name: getattr(batch, name) for name in _FIELDS}


class Scorer(Protocol):
    """Scores batches at one cut."""

    def score(self, batch: Batch, outputs: Sequence[str]) -> Arrays:
        """Return the named outputs for the rows of a batch, which has at least one."""
        ...


class LocalScorer(Scorer):
    """Scores with tables and a dense part of this process.

    Args:
        state: Rows and weights.
        inputs: Inputs of the dense program.
    """

    def __init__(self, state: CutState, inputs: ModelInputs) -> None:
        self._state = state
        self._inputs = inputs

    @override
    def score(self, batch: Batch, outputs: Sequence[str]) -> Arrays:
        plan = self._inputs.plan(batch)
        layouts = self._inputs.make_layouts(plan)
        state = self._state
        with state.shared():  # rows and weights of one cut
            dense, tables = state.dense, state.tables
            if dense is None or tables is None:
                raise state.closed_error()
            state.check_whole()
            if layouts:
                tables.gather(plan, self._inputs.tables, layouts)
        return dense.run(self._inputs.collect(batch, layouts), outputs)


class RemoteScorer(Scorer):
    """Scores with rows of other servers, at a cut that all of them hold.

    Args:
        state: Dense parts of the last cuts.
        inputs: Inputs of the dense program.
        rows: Row source.
    """

    def __init__(self, state: CutState, inputs: ModelInputs, rows: EntryRows) -> None:
        self._state = state
        self._inputs = inputs
        self._rows = rows

    @override
    def score(self, batch: Batch, outputs: Sequence[str]) -> Arrays:
        plan = self._inputs.plan(batch)
        layouts = self._inputs.make_layouts(plan)
        ids = {name: plan.ids(place) for place, name in enumerate(self._inputs.tables)}

        def score_at(state: DenseState) -> Arrays:
            cut = {} if state.key is None else {"cut": state.key}
            rows = self._rows.pull(ids, **cut)
            if layouts:
                plan.pool([rows[name] for name in self._inputs.tables], layouts)
            is_here = isinstance(state.dense, OwnProgram)
            scores = state.dense.run(self._inputs.collect(batch, layouts), outputs, **({} if is_here else cut))
            return DegradedOutputs(scores, rows.missing) if isinstance(rows, PartialRows) else scores

        scores = self._state.states.score_at_common_cut(score_at, self._rows)
        if scores is None:
            raise self._state.closed_error()
        return scores
