"""Parts of a preview: rows and weights as they will be after a change, beside those in service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from monolith.data import Batch
from monolith.embedding import MultiTable
from monolith.serving.servable.cut_state import CutState
from monolith.serving.servable.parts import DenseRunner, OwnProgram
from monolith.serving.servable.scorers import ModelInputs
from monolith.sync.row_updates import Move

__all__ = ["preview_parts"]


def preview_parts(
    state: CutState,
    inputs: ModelInputs | None,
    batches: Sequence[Batch],
    move: Move | None,
    weights: Mapping[str, NDArray[Any]] | None,
    tables: MultiTable | None,
) -> tuple[MultiTable | None, DenseRunner | OwnProgram]:
    """Return tables and dense part after a change; ``Servable.preview`` describes the arguments.

    Raises:
        ModelNotReady: The servable is closed.
    """
    state.check_open()
    dense = state.dense
    if dense is None or inputs is None:
        raise state.closed_error()
    if weights and isinstance(dense, OwnProgram):
        dense = dense.with_weights(weights)
    if state.tables is None:
        return None, dense
    if tables is None:
        tables = _copy_rows(state, inputs, batches)
        if move is not None:
            move.apply(tables)
    return tables, dense


def _copy_rows(state: CutState, inputs: ModelInputs, batches: Sequence[Batch]) -> MultiTable:
    """Return new tables with the rows that the batches need."""
    plans = [inputs.plan(batch) for batch in batches if batch.size]
    with state.shared():
        tables = state.tables
        if tables is None:
            raise state.closed_error()
        needed = tables.emptied()
        for plan in plans:
            for place, name in enumerate(inputs.tables):
                ids = plan.ids(place)
                rows, is_there = tables[name].lookup(ids, return_found=True)
                needed[name].assign(ids[is_there], rows[is_there])
    return needed
