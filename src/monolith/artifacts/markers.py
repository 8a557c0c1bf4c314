"""Marker files: small sealed notes in a run's folder that something asked for once was done.

An empty file, as ``touch`` makes, is a note that says nothing more. What a note means, its reader knows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from monolith.core.durable_files import replace_file, seal, unseal
from monolith.core.errors import ManifestInvalid

__all__ = ["read_marker", "write_marker"]


def write_marker(path: Path, note: dict[str, Any]) -> None:
    """Leave a note; it survives a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, seal(note))


def read_marker(path: Path) -> dict[str, Any] | None:
    """Return the note, or None when there is none.

    Raises:
        ManifestInvalid: The file is neither a note nor empty.
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
        raise ManifestInvalid(f"'{path}' cannot be believed: {error}; remove it to do anew what it marks") from error
