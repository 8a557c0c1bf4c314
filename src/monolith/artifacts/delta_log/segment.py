"""Header of a delta log segment, and the names of segments on disk.

The engine reads and writes the bytes; docs/reference/delta-format.md has the format. Plain values.
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
"""Content of a row: values with optimizer state, or values as stored by the slices' compressors."""

_NAME = re.compile(r"seg-(\d{20})\.delta")


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Position in a log: one of its segments."""

    log: int
    """Number of the log; see ``Segment.log``."""
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChanges:
    """Changes of one table in a segment."""

    upserts: int
    tombstones: int
    is_complete: bool
    """Whether the segment has all rows: ids of the shard without a row are absent."""
    newest_event_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment with a verified header; its rows may be damaged."""

    path: Path
    bytes: int
    log: int
    """Random number of the log, equal in all its segments."""
    sequence: int
    previous: int
    """Sequence of the preceding state; 0 for none."""
    flavour: Flavour
    shard: tuple[int, int]
    """(index, count): ids with ``uint64(id) % count == index``."""
    wall_time_s: float
    """Wall time of the segment; never less than that of the preceding segment."""
    newest_event_s: int
    """Largest event time of its tables."""
    tables_hash: int
    """Hash of names and slices: equal for segments of equal tables."""
    tables: Mapping[str, TableChanges]
    """Changes by table, sorted by name."""

    @property
    def is_complete(self) -> bool:
        """Whether a replay needs no earlier segment."""
        return all(table.is_complete for table in self.tables.values())

    @property
    def upserts(self) -> int:
        """Written rows of all tables."""
        return sum(table.upserts for table in self.tables.values())

    @property
    def tombstones(self) -> int:
        """Removed rows of all tables."""
        return sum(table.tombstones for table in self.tables.values())


def shard_folder(root: Path, index: int, count: int) -> Path:
    """Return the folder of a shard's log under ``root``."""
    return root / f"shard-{index:05d}-of-{count:05d}"


def segment_path(folder: Path, sequence: int) -> Path:
    """Return the path of a segment."""
    return folder / f"seg-{sequence:020d}.delta"


def segment_numbers(folder: Path) -> list[int]:
    """Return the sequences of all segments in a folder, ascending."""
    if not folder.is_dir():
        return []
    found = (_NAME.fullmatch(file.name) for file in folder.iterdir())
    return sorted(int(match[1]) for match in found if match)


def read_segment(path: Path) -> Segment:
    """Return the header of a segment.

    Raises:
        SnapshotCorrupt: The segment is truncated or corrupt; the text has file, offset and reason.
        OSError: The file is unreadable.
    """
    return _describe(path, _native.read_delta_header(str(path)))


def _describe(path: Path, header: _native.DeltaHeader) -> Segment:
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
    """Return the engine's tables, sorted by name."""
    return [tables[name]._native for name in tables.names]
