"""The files of one checkpoint: writing a captured state, and putting it back into the objects of a run.

::

    dense.safetensors         the model's weights
    optimizer.safetensors     tensors of the dense optimizers
    optimizer.json            the rest of them
    state.json                step, data position, metrics, random generators, extra
    tables/                   the snapshot of the tables, with admission filters; not in a dense-only checkpoint
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from monolith import _native
from monolith.artifacts.checkpoint_folder import SavedCheckpoint
from monolith.artifacts.checkpoint_manifest import verify_files
from monolith.core.durable_files import write_synced
from monolith.core.errors import ManifestInvalid, SnapshotCorrupt
from monolith.embedding import RestoreReport
from monolith.training.checkpoints import optimizer_states, random_states
from monolith.training.checkpoints.dense_weights import Aliases
from monolith.training.checkpoints.growth import Growth
from monolith.training.checkpoints.state import Captured, TrainingState
from monolith.training.checkpoints.tensor_files import read_tensors, write_tensors

__all__ = ["TABLES", "LoadedCheckpoint", "read_files", "restore_dense", "restore_tables", "write_dense"]

DENSE, OPTIMIZER, OPTIMIZER_TREE, STATE = "dense.safetensors", "optimizer.safetensors", "optimizer.json", "state.json"
TABLES = "tables"


def write_dense(folder: Path, captured: Captured) -> None:
    """Write everything but the tables."""
    write_tensors(folder / DENSE, captured.dense)
    _native.failpoint("checkpoint.dense_written")
    write_tensors(folder / OPTIMIZER, captured.optimizer_tensors)
    write_synced(folder / OPTIMIZER_TREE, json.dumps(captured.optimizer_tree).encode())
    write_synced(folder / STATE, captured.state_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCheckpoint:
    """The verified content of a checkpoint, except its tables."""

    path: Path
    dense: Mapping[str, Tensor]
    optimizer_tensors: Mapping[str, Tensor]
    optimizer_tree: Mapping[str, Any]
    state: Mapping[str, Any]


def read_files(saved: SavedCheckpoint) -> LoadedCheckpoint:
    """Check the sizes of all files and the checksums of all but the tables', which are checked as they are read.

    Raises:
        ManifestInvalid: A file is missing or altered; the text names it.
    """
    tables = [file.name for file in saved.manifest.files if file.name.startswith(f"{TABLES}/")]
    verify_files(saved.path, saved.manifest, size_only=tables)
    return LoadedCheckpoint(
        path=saved.path,
        dense=read_tensors(saved.path / DENSE),
        optimizer_tensors=read_tensors(saved.path / OPTIMIZER),
        optimizer_tree=json.loads((saved.path / OPTIMIZER_TREE).read_bytes()),
        state=json.loads((saved.path / STATE).read_bytes()),
    )


def restore_tables(saved: SavedCheckpoint, state: TrainingState) -> RestoreReport | None:
    """Load the tables, all or none; return the report of a store that makes one.

    Raises:
        ManifestInvalid: A file is missing or altered; no row has changed.
    """
    names = tuple(state.store.specs)
    if saved.manifest.kind == "dense_only":
        return RestoreReport(restored=(), skipped=(), missing=names)
    try:
        is_bare = saved.manifest.kind == "tables"
        report: object = state.store.restore(saved.path if is_bare else saved.path / TABLES)
    except SnapshotCorrupt as error:
        raise ManifestInvalid(str(error)) from error
    return report if isinstance(report, RestoreReport) else None


def restore_dense(
    loaded: LoadedCheckpoint,
    state: TrainingState,
    weights: Mapping[str, Tensor],
    aliases: Aliases,
    growth: Mapping[str, Growth] | None = None,
) -> None:
    """Put weights that fit, optimizers and random generators back; ``growth`` names the padded weights."""
    state.model.load_state_dict(weights)
    for name, optimizer in state.optimizers.items():
        tree = loaded.optimizer_tree.get(name)
        optimizer_states.decode(name, optimizer, state.model, tree, loaded.optimizer_tensors, aliases, growth)
    if state.rng and loaded.state["rng"] is not None:
        random_states.decode(loaded.state["rng"])
