"""Restore a checkpoint into the objects of a run; everything is checked before the first object changes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from monolith.artifacts.checkpoint_folder import CheckpointFolder, SavedCheckpoint, remedy
from monolith.artifacts.checkpoint_manifest import verify_files
from monolith.core.errors import ArtifactError, ManifestInvalid
from monolith.embedding import RestoreReport
from monolith.embedding.specs import JOB_TABLES
from monolith.training.checkpoints import files
from monolith.training.checkpoints.dense_weights import fit_weights
from monolith.training.checkpoints.growth import Growth, check_order, grow_weights
from monolith.training.checkpoints.state import TrainingState

__all__ = ["Restored", "restore_all", "restore_dense_part", "restore_without_dense"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """State that a run starts from."""

    step: int
    path: Path
    data: Mapping[str, Any] | None
    """For ``Dataset.restore``; None when it was not saved."""
    metrics: Mapping[str, Any]
    extra: Mapping[str, Any]
    saved_extra: Mapping[str, Any] | None
    """The extra state of the checkpoint, also when ``extra`` starts over; None for a snapshot of tables."""
    report: RestoreReport | None
    """The restored tables; None when the store makes no report."""

    @property
    def is_bare(self) -> bool:
        """Whether the state is a snapshot of tables, without a checkpoint around it."""
        return self.saved_extra is None


def restore_all(
    saved: SavedCheckpoint, state: TrainingState, alias_map: Mapping[str, str] | None, *, grows: bool = False
) -> Restored:
    """Restore weights, optimizers, tables and random generators; ``state.step`` too.

    With ``grows``, weights whose inputs became more are padded, and new weights keep their initial values.

    Raises:
        ManifestInvalid: A file is missing or altered; the text names it and an earlier checkpoint that is whole.
        SchemaMismatch: The weights or tables do not fit the model.
    """
    if saved.manifest.kind == "tables":
        return _restore_bare_tables(saved, state)
    loaded = _read_files(saved)
    growth: Mapping[str, Growth] = {}
    if grows:
        names = loaded.state.get("input_columns")
        weights, aliases, growth = grow_weights(state.model, loaded.dense, alias_map, saved.path, names)
    else:
        check_order(state.model, loaded.state.get("input_columns"), saved.path)
        weights, aliases = fit_weights(state.model, loaded.dense, alias_map, saved.path)
    report = _restore_tables(saved, state)
    files.restore_dense(loaded, state, weights, aliases, growth)
    state.step = saved.step
    return _restored(saved.step, loaded, report, metrics=loaded.state["metrics"], extra=loaded.state["extra"])


def restore_dense_part(saved: SavedCheckpoint, state: TrainingState, alias_map: Mapping[str, str] | None) -> Restored:
    """Restore weights and optimizers; tables are unchanged. A bare snapshot has neither."""
    if saved.manifest.kind == "tables":
        return Restored(
            step=saved.step, path=saved.path, data=None, metrics={}, extra={}, saved_extra=None, report=None
        )
    loaded = _read_files(saved)
    check_order(state.model, loaded.state.get("input_columns"), saved.path)
    weights, aliases = fit_weights(state.model, loaded.dense, alias_map, saved.path)
    files.restore_dense(loaded, state, weights, aliases)
    state.step = saved.step
    return _restored(saved.step, loaded, None, metrics=loaded.state["metrics"], extra=loaded.state["extra"])


def restore_without_dense(saved: SavedCheckpoint, state: TrainingState, *, keep_step: bool) -> Restored:
    """Restore the tables and the data position; weights, optimizers and random generators are unchanged.

    Without ``keep_step`` steps, metrics and extra start over.
    """
    if saved.manifest.kind == "tables":
        return _restore_bare_tables(saved, state)
    loaded = _read_files(saved)
    report = _restore_tables(saved, state)
    state.step = saved.step if keep_step else 0
    if keep_step:
        return _restored(state.step, loaded, report, metrics=loaded.state["metrics"], extra=loaded.state["extra"])
    restored = _restored(state.step, loaded, report, metrics={}, extra={})
    return replace(restored, data=None) if loaded.state["extra"].get("data_ended") else restored


def _restore_bare_tables(saved: SavedCheckpoint, state: TrainingState) -> Restored:
    """Restore a snapshot: tables only. The dense part is that of a new run, and the step is 0."""
    report = _restore_tables(saved, state)
    state.step = 0
    return Restored(step=0, path=saved.path, data=None, metrics={}, extra={}, saved_extra=None, report=report)


def _restored(
    step: int,
    loaded: files.LoadedCheckpoint,
    report: RestoreReport | None,
    *,
    metrics: Mapping[str, Any],
    extra: Mapping[str, Any],
) -> Restored:
    path, data = loaded.path, loaded.state["data"]
    saved_extra = loaded.state["extra"]
    return Restored(
        step=step, path=path, data=data, metrics=metrics, extra=extra, saved_extra=saved_extra, report=report
    )


def _read_files(saved: SavedCheckpoint) -> files.LoadedCheckpoint:
    try:
        return files.read_files(saved)
    except ManifestInvalid as error:
        raise _with_remedy(saved, error) from error


def _restore_tables(saved: SavedCheckpoint, state: TrainingState) -> RestoreReport | None:
    try:
        report = files.restore_tables(saved, state)
    except ManifestInvalid as error:
        raise _with_remedy(saved, error) from error
    skipped = [] if report is None else [name for name in report.skipped if not name.startswith(JOB_TABLES)]
    if skipped:
        logger.warning("checkpoint tables not in the model, skipped tables=%s", ",".join(skipped))
    if report is not None and report.missing:
        logger.warning("model tables not in the checkpoint, starting empty tables=%s", ",".join(report.missing))
    return report


def _with_remedy(damaged: SavedCheckpoint, error: ManifestInvalid) -> ManifestInvalid:
    """Return ``error`` with the newest earlier checkpoint that is intact; the user decides about the fallback."""
    earlier = [
        saved
        for saved in CheckpointFolder(damaged.path.parent).saved()
        if saved.manifest.number < damaged.manifest.number
    ]
    good = next((saved for saved in reversed(earlier) if _is_whole(saved)), None)
    return ManifestInvalid(f"the checkpoint of step {damaged.step} is damaged: {error}; {remedy(good)}")


def _is_whole(saved: SavedCheckpoint) -> bool:
    try:
        verify_files(saved.path, saved.manifest)
    except ArtifactError:
        return False
    return True
