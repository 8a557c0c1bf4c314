"""``open_checkpoint``: a folder to start from, which is a checkpoint or a bare snapshot of tables."""

from __future__ import annotations

from pathlib import Path

from monolith.artifacts.checkpoint_folder import SavedCheckpoint
from monolith.artifacts.checkpoint_manifest import CheckpointManifest, read_manifest
from monolith.artifacts.remote_folder import fetch_bundle
from monolith.core.errors import ManifestInvalid, SnapshotCorrupt
from monolith.embedding import snapshot

__all__ = ["open_checkpoint"]


def open_checkpoint(folder: Path) -> SavedCheckpoint:
    """Return the checkpoint in a folder. A snapshot, as ``monolith convert`` writes it, has the kind ``tables``.

    Raises:
        CheckpointMissing: The folder has neither.
        ManifestInvalid: The manifest is corrupt, or of another kind of folder.
    """
    fetch_bundle(folder)
    try:
        return SavedCheckpoint(folder, read_manifest(folder))
    except ManifestInvalid:
        tables = _rows_by_table(folder)
        if tables is None:
            raise
        manifest = CheckpointManifest(
            step=0, number=0, kind="tables", saved_at_s=0.0, reason="snapshot", package_version="", tables=tables
        )
        return SavedCheckpoint(folder, manifest)


def _rows_by_table(folder: Path) -> dict[str, int] | None:
    try:
        return {table.name: table.rows for table in snapshot.read_manifest(folder)}
    except (SnapshotCorrupt, KeyError):
        return None
