"""One segment of a delta log as its header describes it, and how segments are named on disk.

The engine reads and writes the bytes; docs/reference/delta-format.md has the format. Which segments are to be read,
and in what order, is ``reader``'s business.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from monolith import _native

if TYPE_CHECKING:
    from monolith.embedding import MultiTable

__all__ = [
    "Flavour",
    "LogPosition",
    "Segment",
    "TableChanges",
    "native_tables",
    "read_segment",
    "segment_numbers",
    "segment_path",
    "shard_folder",
]

Flavour: TypeAlias = Literal["durable", "serving"]
"""What a row holds: values with optimizer state, or values as the slices' compressors store them."""

_NAME = re.compile(r"seg-(\d{20})\.delta")


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A segment of a log."""

    log: int
    """The log's own number; see ``Segment.log``."""
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChanges:
    """What a segment says of one table."""

    upserts: int
    tombstones: int
    is_complete: bool
    """Whether all rows are in it: an id of its shard that is not, is absent."""
    newest_event_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment whose header was read and believed; its rows may still be damaged."""

    path: Path
    bytes: int
    log: int
    """Drawn when the log was begun; the same in all its segments."""
    sequence: int
    previous: int
    """The sequence that the tables were at before; 0 for none."""
    flavour: Flavour
    shard: tuple[int, int]
    """(index, count): ids with ``uint64(id) % count == index``."""
    wall_time_s: float
    """When it was taken; never less than that of the segment before."""
    newest_event_s: int
    """The largest event time that any of its tables has seen."""
    tables_hash: int
    """Of names and slices: equal for segments that fit the same tables."""
    tables: Mapping[str, TableChanges]
    """By name, sorted."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing before it is needed."""
        return all(table.is_complete for table in self.tables.values())

    @property
    def upserts(self) -> int:
        """Rows of all tables."""
        return sum(table.upserts for table in self.tables.values())

    @property
    def tombstones(self) -> int:
        """Removed ids of all tables."""
        return sum(table.tombstones for table in self.tables.values())


def shard_folder(root: Path, index: int, count: int) -> Path:
    """Return where the log of a shard lies among those of its siblings."""
    return root / f"shard-{index:05d}-of-{count:05d}"


def segment_path(folder: Path, sequence: int) -> Path:
    """Return the file of a segment."""
    return folder / f"seg-{sequence:020d}.delta"


def segment_numbers(folder: Path) -> list[int]:
    """Return the sequences of all segments in the folder, rising."""
    if not folder.is_dir():
        return []
    found = (_NAME.fullmatch(file.name) for file in folder.iterdir())
    return sorted(int(match[1]) for match in found if match)


def read_segment(path: Path) -> Segment:
    """Return what the header of a segment says.

    Raises:
        SnapshotCorrupt: It is cut off or altered; the text has file, offset and reason.
        OSError: The file cannot be read.
    """
    return described(path, _native.read_delta_header(str(path)))


def described(path: Path, header: _native.DeltaHeader) -> Segment:
    """Return a header that the engine has read, in our words."""
    return Segment(
        path=path,
        bytes=path.stat().st_size,
        log=header.log,
        sequence=header.sequence,
        previous=header.previous,
        flavour=cast("Flavour", header.flavour.name),
        shard=(header.shard_index, header.shard_count),
        wall_time_s=header.wall_time_us / 1e6,
        newest_event_s=header.newest_event_s,
        tables_hash=header.tables_hash,
        tables={
            table.name: TableChanges(
                upserts=table.upserts,
                tombstones=table.tombstones,
                is_complete=table.is_complete,
                newest_event_s=table.max_time_s,
            )
            for table in header.tables
        },
    )


def native_tables(tables: MultiTable) -> list[_native.Table]:
    """Return the engine's tables, in sorted-name order."""
    return [tables[name]._native for name in tables.names]
