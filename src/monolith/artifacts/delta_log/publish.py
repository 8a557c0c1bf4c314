"""``cut.json``: the current cut, with one sequence per shard and one dense version.

The file is sealed, lies beside the shards' logs, and is replaced atomically. Readers must check that the named segments
exist.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from monolith.artifacts.delta_log.event_ages import CutAges
from monolith.core.clock import Clock
from monolith.core.durable_files import make_folder, only_writer, replace_file, seal, unseal
from monolith.core.errors import ConfigError, ManifestInvalid, VersionConflict

__all__ = ["CUT", "Cut", "encoded_cut", "publish", "read_cut"]

logger = logging.getLogger(__name__)

CUT = "cut.json"
_FORMAT = "monolith.cut"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A consistent state: one sequence per shard, and the dense weights of the same moment."""

    sequences: Mapping[int, int]
    """Shard index to sequence, for every shard from 0."""
    dense: int
    """Version of the dense weights; 0 without any."""
    newest_event_s: int = 0
    """Largest event time in the cut."""
    number: int = 0
    """Increases with every publish; set by ``publish``."""
    published_at_s: float = 0.0
    """Wall time; set by ``publish``."""
    epoch: int = 0
    """Fencing number of the publisher: each one that opens the folder takes a larger one."""
    ages: tuple[CutAges, ...] = ()
    """Ages of the events in this cut and in the cuts before it, oldest first."""
    folders: tuple[str, ...] = ()
    """Folder of each shard's log, relative to the cut's folder; empty means the names of ``shard_folder``."""

    def __post_init__(self) -> None:
        """Check the values."""
        if not self.sequences or sorted(self.sequences) != list(range(len(self.sequences))):
            raise ConfigError(f"shards of sequences are {sorted(self.sequences)}, expected every shard from 0")
        for shard, sequence in self.sequences.items():
            if sequence < 0:
                raise ConfigError(f"sequence of shard {shard} is {sequence!r}, expected a number from 0")
        if self.folders and len(self.folders) != len(self.sequences):
            raise ConfigError(f"folders has {len(self.folders)} names, expected {len(self.sequences)}, one per shard")
        if self.dense < 0:
            raise ConfigError(f"dense is {self.dense!r}, expected a version from 0")
        if self.epoch < 0:
            raise ConfigError(f"epoch is {self.epoch!r}, expected a number from 0")


def publish(root: str | PathLike[str], cut: Cut, *, clock: Clock) -> Cut:
    """Make a cut the current one atomically; return it with its number and time.

    A corrupt ``cut.json`` is moved aside, and the numbers continue after its number as far as it is readable.

    Args:
        root: Folder of the shards' logs.
        cut: The cut to publish.
        clock: Clock of the publish time.

    Raises:
        VersionConflict: A publisher with a larger epoch has published to the folder.
    """
    folder = Path(root)
    make_folder(folder)
    with only_writer(folder):
        try:
            before = read_cut(folder)
            last = before.number if before else 0
            if before is not None and before.epoch > cut.epoch:
                raise VersionConflict(
                    f"epoch of the publisher is {cut.epoch}, expected at least {before.epoch} as in '{folder / CUT}': "
                    f"another publisher uses the folder; stop one of them"
                )
        except ManifestInvalid as error:
            last = max(_salvage_number(folder / CUT), cut.dense, *cut.sequences.values())
            aside = folder / f"{CUT}.corrupt-{secrets.token_hex(4)}"
            (folder / CUT).rename(aside)
            logger.error("corrupt cut moved aside path=%s last=%d error=%s", aside, last, error)
        number, now_s = last + 1, clock.now_s()
        ages = tuple(dataclasses.replace(each, number=each.number or number) for each in cut.ages)
        new = dataclasses.replace(cut, number=number, published_at_s=now_s, ages=ages)
        replace_file(folder / CUT, encoded_cut(new))
    return new


def encoded_cut(cut: Cut) -> bytes:
    """Return the content of ``cut.json``."""
    sequences = {str(shard): cut.sequences[shard] for shard in sorted(cut.sequences)}
    return seal({"format": _FORMAT, "version": _VERSION, **dataclasses.asdict(cut), "sequences": sequences})


def read_cut(root: str | PathLike[str]) -> Cut | None:
    """Return the current cut; None before the first.

    Raises:
        ManifestInvalid: The file is corrupt.
        VersionConflict: Another release wrote the file.
    """
    path = Path(root) / CUT
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        body = unseal(content)
    except ValueError as error:
        raise ManifestInvalid(f"'{path}' is corrupt: {error}; publish again") from error
    if body.pop("format", None) != _FORMAT:
        raise ManifestInvalid(f"'{path}' has another format, expected a cut")
    version = body.pop("version")
    if version != _VERSION:
        raise VersionConflict(f"version of '{path}' is {version}, expected {_VERSION}; use the release that wrote it")
    try:
        return _decode(body)
    except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
        raise ManifestInvalid(f"'{path}' is invalid: {error}; publish again") from error


def _salvage_number(path: Path) -> int:
    return max((int(digits) for digits in re.findall(rb'"number": ?(\d{1,15})\b', path.read_bytes())), default=0)


def _decode(body: dict[str, Any]) -> Cut:
    known = {each.name for each in dataclasses.fields(Cut)}
    body = {name: value for name, value in body.items() if name in known}  # a later release may add fields
    sequences = {int(shard): sequence for shard, sequence in body.pop("sequences").items()}
    folders = tuple(body.pop("folders", ()))
    ages = tuple(CutAges.from_json(each) for each in body.pop("ages", ()))
    return Cut(sequences=sequences, folders=folders, ages=ages, **body)
