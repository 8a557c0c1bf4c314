"""Marker files: small sealed JSON notes in a run's folder that record a completed one-time action.

An empty file, as created by ``touch``, is a valid empty note.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from monolith.core.durable_files import make_folder, replace_file, seal, unseal
from monolith.core.errors import ManifestInvalid

__all__ = ["read_marker", "write_marker"]


def write_marker(path: Path, note: dict[str, Any]) -> None:
    """Write a marker durably."""
    make_folder(path.parent)
    replace_file(path, seal(note))


def read_marker(path: Path) -> dict[str, Any] | None:
    """Return the note of a marker; None if the file does not exist.

    Raises:
        ManifestInvalid: The file is corrupt.
    """
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not content.strip():
        return {}
    try:
        return unseal(content)
    except ValueError as error:
        raise ManifestInvalid(f"'{path}' is corrupt: {error}; remove it to repeat the action that it marks") from error
