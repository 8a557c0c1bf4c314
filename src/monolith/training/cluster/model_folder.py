"""Paths in the model folder of a job that servers and workers share."""

from __future__ import annotations

from pathlib import Path

from monolith.artifacts import CheckpointFolder

__all__ = ["log_folder", "newest_tables"]


def newest_tables(model_dir: str | Path) -> Path | None:
    """Return the tables of the newest checkpoint of a model folder; None without a checkpoint.

    Raises:
        ArtifactError: The newest checkpoint is corrupt.
    """
    if not str(model_dir):
        return None
    newest = CheckpointFolder(Path(model_dir) / "checkpoints").newest()
    return None if newest is None else newest.path / "tables"


def log_folder(model_dir: str | Path, index: int) -> Path | None:
    """Return the folder of the delta log of a server; None for a job without a folder."""
    return Path(model_dir) / "delta_log" / f"ps_{index}" if str(model_dir) else None
