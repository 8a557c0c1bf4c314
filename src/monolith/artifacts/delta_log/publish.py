"""The publish manifest: one sequence per shard and one dense version, which a server takes together or not at all.

One sealed file beside the shards' logs, replaced whole. Whether the segments it names have arrived, its reader sees.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from monolith.core.clock import Clock
from monolith.core.durable_files import only_writer, replace_file, seal, unseal
from monolith.core.errors import ConfigError, ManifestInvalid, VersionConflict

__all__ = ["CUT", "Cut", "encoded_cut", "publish", "read_cut"]

CUT = "cut.json"
_FORMAT = "monolith.cut"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What belongs together: a state of all shards, and the dense weights that were trained with it."""

    sequences: Mapping[int, int]
    """Shard index to sequence, for all shards from 0."""
    dense: int
    """The version of the dense weights."""
    newest_event_s: int = 0
    """The largest event time in it."""
    number: int = 0
    """Rises with every publish; set by ``publish``."""
    published_at_s: float = 0.0
    """Wall time; set by ``publish``."""
    folders: tuple[str, ...] = ()
    """The folder of each shard's log, relative to that of the cut; empty = the names of ``shard_folder``."""

    def __post_init__(self) -> None:
        """Refuse what names no state."""
        if not self.sequences or sorted(self.sequences) != list(range(len(self.sequences))):
            raise ConfigError(f"sequences has shards {sorted(self.sequences)}; name every shard from 0 up")
        for shard, sequence in self.sequences.items():
            if sequence < 0:
                raise ConfigError(f"the sequence of shard {shard} is {sequence}; give a number from 0")
        if self.folders and len(self.folders) != len(self.sequences):
            raise ConfigError(f"folders has {len(self.folders)} names for {len(self.sequences)} shards; name each")
        if self.dense < 0:
            raise ConfigError(f"dense is {self.dense}; give a version from 0")


def publish(root: str | PathLike[str], cut: Cut, *, clock: Clock) -> Cut:
    """Make a cut the current one, whole or not at all; return it with its number and time.

    Args:
        root: The folder that holds the shards' logs.
        cut: What to publish.
        clock: What it is stamped with.
    """
    folder = Path(root)
    folder.mkdir(parents=True, exist_ok=True)
    with only_writer(folder):
        before = read_cut(folder)
        new = dataclasses.replace(cut, number=before.number + 1 if before else 1, published_at_s=clock.now_s())
        replace_file(folder / CUT, encoded_cut(new))
    return new


def encoded_cut(cut: Cut) -> bytes:
    """Return the content of the file."""
    sequences = {str(shard): cut.sequences[shard] for shard in sorted(cut.sequences)}
    return seal({"format": _FORMAT, "version": _VERSION, **dataclasses.asdict(cut), "sequences": sequences})


def read_cut(root: str | PathLike[str]) -> Cut | None:
    """Return the current cut; None before the first.

    Raises:
        ManifestInvalid: The file was altered.
        VersionConflict: It is of a release that this one does not know.
    """
    path = Path(root) / CUT
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        body = unseal(content)
    except ValueError as error:
        raise ManifestInvalid(f"'{path}' cannot be believed: {error}; publish again") from error
    if body.pop("format", None) != _FORMAT:
        raise ManifestInvalid(f"'{path}' is no cut; look for another file of that name")
    version = body.pop("version")
    if version != _VERSION:
        raise VersionConflict(
            f"'{path}' has version {version}, this release reads {_VERSION}; use the one that wrote it"
        )
    return _decoded(body)


def _decoded(body: dict[str, Any]) -> Cut:
    sequences = {int(shard): sequence for shard, sequence in body.pop("sequences").items()}
    folders = tuple(body.pop("folders", ()))
    return Cut(sequences=sequences, folders=folders, **body)
