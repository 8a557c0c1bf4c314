"""File layout on disk: checkpoints, exports and delta logs with their manifests, retention, markers, file copies.

The package needs no torch.
"""

from __future__ import annotations

from monolith.artifacts.checkpoint_folder import CheckpointFolder, SavedCheckpoint
from monolith.artifacts.checkpoint_manifest import CheckpointManifest, FileRecord, read_manifest, verify_files
from monolith.artifacts.file_copy import copy_file, copy_folder
from monolith.artifacts.markers import read_marker, write_marker
from monolith.artifacts.retention import Retention

__all__ = [
    "CheckpointFolder",
    "CheckpointManifest",
    "FileRecord",
    "Retention",
    "SavedCheckpoint",
    "copy_file",
    "copy_folder",
    "read_manifest",
    "read_marker",
    "verify_files",
    "write_marker",
]
