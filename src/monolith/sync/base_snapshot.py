"""``base.json``: the snapshot that a follower starts from when earlier segments are gone.

The base is a checkpoint of the trainer, named after it is safe. From then on the logs may drop the segments that the
base contains.
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

__all__ = ["BASE", "BaseSnapshot", "encode_base", "read_base", "write_base"]

BASE = "base.json"
_FORMAT = "monolith.base"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseSnapshot:
    """A snapshot, and the position of each shard that it contains."""

    tables: Path
    """Folder of the snapshot."""
    positions: Mapping[int, LogPosition]


def write_base(root: str | PathLike[str], base: BaseSnapshot) -> None:
    """Write the base. The snapshot must be safe; its path is stored relative to ``root``."""
    tables = os.path.relpath(base.tables.absolute(), Path(root).absolute())
    replace_file(Path(root) / BASE, encode_base(tables, base.positions))


def encode_base(tables: str, positions: Mapping[int, LogPosition]) -> bytes:
    """Return the content of the file; ``tables`` is relative to its folder."""
    encoded = {str(shard): {"log": each.log, "sequence": each.sequence} for shard, each in positions.items()}
    return seal({"format": _FORMAT, "version": _VERSION, "tables": tables, "positions": encoded})


def read_base(root: str | PathLike[str]) -> BaseSnapshot | None:
    """Return the base; None if the file does not exist.

    Raises:
        ManifestInvalid: The file is corrupt.
        VersionConflict: Another release wrote the file.
    """
    path = Path(root) / BASE
    try:
        body = unseal(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise ManifestInvalid(f"'{path}' is corrupt: {error}; save another checkpoint") from error
    if body.get("format") != _FORMAT or body.get("version") != _VERSION:
        raise VersionConflict(
            f"'{path}' is {body.get('format')!r} version {body.get('version')}, expected {_FORMAT!r} version "
            f"{_VERSION}; use the release that wrote it"
        )
    positions = {int(shard): LogPosition(**each) for shard, each in body["positions"].items()}
    return BaseSnapshot(tables=Path(os.path.normpath(Path(root) / body["tables"])), positions=positions)
