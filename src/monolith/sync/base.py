"""``base.json``: the snapshot that a follower begins with when the segments before it are gone.

A checkpoint of the trainer, named when it is safe; after that the logs need not hold what is in it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from monolith.artifacts.delta_log import LogPosition
from monolith.core.durable_files import replace_file, seal, unseal
from monolith.core.errors import ManifestInvalid, VersionConflict

__all__ = ["BASE", "Base", "encoded_base", "read_base", "write_base"]

BASE = "base.json"
_FORMAT = "monolith.base"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A snapshot, and the segment of each shard that it is the state of."""

    tables: Path
    """The snapshot's folder."""
    positions: Mapping[int, LogPosition]


def write_base(root: str | PathLike[str], base: Base) -> None:
    """Make a snapshot that is safe the one to begin with. Its place is kept relative to ``root``."""
    tables = os.path.relpath(base.tables.absolute(), Path(root).absolute())
    replace_file(Path(root) / BASE, encoded_base(tables, base.positions))


def encoded_base(tables: str, positions: Mapping[int, LogPosition]) -> bytes:
    """Return the content of the file; ``tables`` is relative to its folder."""
    placed = {str(shard): {"log": each.log, "sequence": each.sequence} for shard, each in positions.items()}
    return seal({"format": _FORMAT, "version": _VERSION, "tables": tables, "positions": placed})


def read_base(root: str | PathLike[str]) -> Base | None:
    """Return the snapshot to begin with; None when there is none.

    Raises:
        ManifestInvalid: The file was altered.
        VersionConflict: It is of a release that this one does not know.
    """
    path = Path(root) / BASE
    try:
        body = unseal(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise ManifestInvalid(f"'{path}' cannot be believed: {error}; save another checkpoint") from error
    if body.get("format") != _FORMAT or body.get("version") != _VERSION:
        raise VersionConflict(
            f"'{path}' is {body.get('format')!r} of version {body.get('version')}, this release reads {_FORMAT!r} of "
            f"version {_VERSION}; use the one that wrote it"
        )
    positions = {int(shard): LogPosition(**each) for shard, each in body["positions"].items()}
    return Base(tables=Path(os.path.normpath(Path(root) / body["tables"])), positions=positions)
