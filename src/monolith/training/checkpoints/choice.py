"""Choose the checkpoint that a run starts from: its own newest, or a requested one, once.

A request (``restore_dir``, ``restore_ckpt``) is noted in ``<model_dir>/restore_ckpt`` with the number of the newest
checkpoint at that time. Until the run has saved a newer one it starts from there again; after that, from its own. The
same holds for ``<model_dir>/clear_nn``. A crash between restore and first save therefore loses no request, and a later
restart does not repeat one.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monolith.artifacts.checkpoint_folder import CheckpointFolder, SavedCheckpoint
from monolith.artifacts.checkpoint_manifest import MANIFEST
from monolith.artifacts.markers import read_marker, write_marker
from monolith.artifacts.remote_folder import artifact_url, open_folder
from monolith.core.errors import CheckpointMissing, ConfigError
from monolith.training.checkpoints.opening import open_checkpoint
from monolith.training.config.checkpoint import RestoreConfig

__all__ = ["CHECKPOINTS", "DENSE_ONLY", "CheckpointChoice", "choose", "choose_for_reading"]

logger = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
DENSE_ONLY = "dense_only"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointChoice:
    """The checkpoint to restore, and the markers to write after restoring it."""

    saved: SavedCheckpoint | None
    """None: there is nothing to start from."""
    is_dense_cleared: bool
    notes: dict[Path, dict[str, Any]]

    def leave_notes(self) -> None:
        """Write the markers."""
        for path, note in self.notes.items():
            write_marker(path, note)


def choose(model_dir: Path, settings: RestoreConfig) -> CheckpointChoice:
    """Decide for a training run.

    Raises:
        ArtifactError: The requested checkpoint is missing, or the newest one is damaged.
    """
    folder = CheckpointFolder(model_dir / CHECKPOINTS)
    number = folder.last_number()
    notes: dict[Path, dict[str, Any]] = {}
    asked = _asked(settings)
    marker_path = model_dir / "restore_ckpt"
    marker = read_marker(marker_path)
    is_new_request = any(asked.values()) and (marker is None or marker.get("asked", asked) != asked)
    if is_new_request and (saved := _requested(folder, settings)) is not None:
        notes[marker_path] = {"asked": asked, "checkpoint": artifact_url(saved.path), "number": number}
    else:
        saved = _current(folder, marker, number)
    clear_path = model_dir / "clear_nn"
    is_dense_cleared = settings.clear_nn and _is_still_to_do(read_marker(clear_path), number)
    if is_dense_cleared:
        notes[clear_path] = {"number": number}
    elif settings.clear_nn:
        logger.info("clear_nn was done before; remove the marker to do it again marker=%s", clear_path)
    return CheckpointChoice(saved=saved, is_dense_cleared=is_dense_cleared, notes=notes)


def choose_for_reading(model_dir: Path, settings: RestoreConfig) -> SavedCheckpoint | None:
    """Decide for evaluation and prediction: a request counts each time, and leaves no note.

    The name of a checkpoint of another folder means nothing in this run's folder: after the run has started from it,
    the newest checkpoint of the run counts.
    """
    folder = CheckpointFolder(model_dir / CHECKPOINTS)
    marker = read_marker(model_dir / "restore_ckpt")
    has_started = settings.restore_dir is not None and (marker or {}).get("asked") == _asked(settings)
    if (settings.restore_ckpt or settings.restore_dir) and not has_started:
        saved = _requested(folder, settings)
        if saved is not None:
            return saved
    return _current(folder, marker, folder.last_number())


def _asked(settings: RestoreConfig) -> dict[str, str | None]:
    """Return the request of the settings, as a marker records it."""
    restore_dir = None if settings.restore_dir is None else str(settings.restore_dir)
    return {"restore_dir": restore_dir, "restore_ckpt": settings.restore_ckpt}


def _requested(folder: CheckpointFolder, settings: RestoreConfig) -> SavedCheckpoint | None:
    """Return the requested checkpoint; None when the request is another folder and this run has checkpoints."""
    if settings.restore_dir and not folder.saved():
        place = open_folder(settings.restore_dir)
        if (place / MANIFEST).is_file() and not settings.restore_ckpt:
            return open_checkpoint(place)
        folder = CheckpointFolder(place / CHECKPOINTS if (place / CHECKPOINTS).is_dir() else place)
        if not settings.restore_ckpt:
            saved = folder.newest()
            if saved is None:
                raise CheckpointMissing(f"restore_dir '{settings.restore_dir}' holds no checkpoint; check the path")
            return saved
    if settings.restore_ckpt is None:
        logger.info("restore_dir ignored: the run has checkpoints dir=%s", folder.root)
        return None
    return folder.find(_name_in(folder, settings.restore_ckpt))


def _name_in(folder: CheckpointFolder, restore_ckpt: str) -> str:
    """The name of a checkpoint that may be given as a path."""
    path = Path(restore_ckpt)
    if path.parent != Path() and path.parent.resolve() != folder.root.resolve():
        raise ConfigError(
            f"restore_ckpt {restore_ckpt!r} is not in '{folder.root}'; give its name only, and set restore_dir to "
            "start from another run"
        )
    return path.name


def _current(folder: CheckpointFolder, marker: dict[str, Any] | None, number: int) -> SavedCheckpoint | None:
    """The newest checkpoint, or the one that was asked for when none is newer."""
    if marker and marker["number"] >= number:
        return open_checkpoint(open_folder(marker["checkpoint"]))
    return folder.newest()


def _is_still_to_do(marker: dict[str, Any] | None, number: int) -> bool:
    """Return whether no checkpoint saved since contains the effect of a one-time request."""
    return marker is None or marker.get("number", -1) >= number
