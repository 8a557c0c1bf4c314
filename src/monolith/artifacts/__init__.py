"""Names and layout on disk: checkpoints with their manifests, retention, markers, and copying of files and folders.

What the files mean to a model or a table, nothing here knows; torch is not imported.
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
