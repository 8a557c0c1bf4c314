"""Which segments lead tables from where they are to a cut, and taking them there.

Small steps are applied to the tables in use; every byte was read and checked before, so they cannot fail half-way. A
state that has to be begun anew is built in tables of its own, which then take the place of the old ones.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from monolith import _native
from monolith.artifacts.delta_log import Cut, DeltaReader, LogPosition, Segment, shard_folder
from monolith.core.errors import ArtifactError, DeltaLogBroken
from monolith.embedding import MultiTable
from monolith.embedding.specs import JOB_TABLES
from monolith.sync.base import Base, read_base

__all__ = ["RowMove", "Touched", "opened", "plan_move", "rebuilt", "replay", "touched_ids"]

Touched: TypeAlias = Mapping[str, NDArray[np.int64]]
"""Ids by table, each once and rising."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMove:
    """A way to the rows of a cut."""

    segments: Sequence[Segment]
    """To be replayed, in order."""
    positions: Mapping[int, LogPosition]
    """Where the tables are afterwards, by shard."""
    is_anew: bool
    """Whether it begins with empty tables, or with ``base``, instead of those in use."""
    base: Base | None = None
    newest: Sequence[Segment] = ()
    """The segments that the cut names, whether they are to be replayed or not."""

    @property
    def rows(self) -> int:
        """Rows that are written or removed."""
        return sum(segment.upserts + segment.tombstones for segment in self.segments)


def plan_move(root: Path, cut: Cut, at: Mapping[int, LogPosition]) -> RowMove:
    """Find the way from where tables are, by shard, to a cut.

    Raises:
        DeltaLogBroken: The segments are not there, or damaged, and no base makes up for it.
    """
    readers = _readers(root, cut)
    newest = [reader.read(cut.sequences[shard]) for shard, reader in enumerate(readers) if cut.sequences[shard]]
    logs = {segment.shard[0]: segment.log for segment in newest}
    goal = {shard: LogPosition(logs.get(shard, 0), sequence) for shard, sequence in sorted(cut.sequences.items())}
    if at.keys() == goal.keys() and all(_leads_to(at[shard], goal[shard]) for shard in goal):
        try:
            segments = _segments(readers, at, cut)
        except DeltaLogBroken:
            pass  # they were removed; begin anew
        else:
            if not any(segment.is_complete for segment in segments):
                return RowMove(segments=segments, positions=goal, is_anew=False, newest=newest)
    start = {shard: LogPosition(position.log, 0) for shard, position in goal.items()}
    try:
        return RowMove(segments=_segments(readers, start, cut), positions=goal, is_anew=True, newest=newest)
    except DeltaLogBroken:
        base = read_base(root)
        if base is None or base.positions.keys() != goal.keys():
            raise
        if not all(_leads_to(base.positions[shard], goal[shard]) for shard in goal):
            raise
        segments = _segments(readers, base.positions, cut)
        return RowMove(segments=segments, positions=goal, is_anew=True, base=base, newest=newest)


def _readers(root: Path, cut: Cut) -> list[DeltaReader]:
    count = len(cut.sequences)
    if cut.folders:
        return [DeltaReader(os.path.normpath(root / folder)) for folder in cut.folders]
    return [DeltaReader(shard_folder(root, shard, count)) for shard in range(count)]


def _leads_to(one: LogPosition, other: LogPosition) -> bool:
    return one.sequence <= other.sequence and (one.log == other.log or not one.sequence)


def _segments(readers: Sequence[DeltaReader], after: Mapping[int, LogPosition], cut: Cut) -> list[Segment]:
    found: list[Segment] = []
    for shard, reader in enumerate(readers):
        if after[shard].sequence < cut.sequences[shard]:
            found += reader.plan(after[shard].sequence, cut.sequences[shard])
    return found


@contextmanager
def opened(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Hold segments open, and check every byte: they stay as they are when their names are removed meanwhile.

    Raises:
        DeltaLogBroken: One is gone, or damaged.
    """
    handles: list[int] = []
    held: list[Segment] = []
    try:
        for segment in segments:
            try:
                handles.append(os.open(segment.path, os.O_RDONLY))
            except FileNotFoundError as error:
                raise DeltaLogBroken(
                    f"'{segment.path}' was removed meanwhile; begin with a newer state", last_good=segment.previous
                ) from error
            own = dataclasses.replace(segment, path=Path(f"/proc/self/fd/{handles[-1]}"))
            DeltaReader(segment.path.parent).verify(own)
            held.append(own)
        yield held
    finally:
        for handle in handles:
            os.close(handle)


def replay(segments: Sequence[Segment], tables: MultiTable, keep: tuple[int, int]) -> None:
    """Replay segments, all of one shard before those of the next.

    Raises:
        SchemaMismatch: The tables are others; nothing was changed by the segment that says so.
    """
    natives = [tables[name]._native for name in tables]
    for segment in segments:
        _native.replay_delta(str(segment.path), natives, *keep)


def touched_ids(segments: Sequence[Segment], keep: tuple[int, int]) -> Touched | None:
    """Return the ids whose rows segments change or remove, by table; None where one replaces a whole table."""
    if any(table.is_complete for segment in segments for table in segment.tables.values()):
        return None
    found: dict[str, list[NDArray[np.int64]]] = {}
    for segment in segments:
        for name, ids in zip(segment.tables, _native.read_delta_ids(str(segment.path), *keep), strict=True):
            found.setdefault(name, []).append(ids)
    return {name: np.unique(np.concatenate(each)) for name, each in found.items()}


def rebuilt(move: RowMove, like: MultiTable, keep: tuple[int, int]) -> MultiTable:
    """Return new tables with the rows that a move leads to.

    Args:
        move: The way there, from the beginning.
        like: Tables of the same kind.
        keep: (index, count): only ids with ``uint64(id) % count == index``.

    Raises:
        DeltaLogBroken: A segment is gone, or damaged.
        ArtifactError: The base is.
        SchemaMismatch: The rows are of other tables.
    """
    tables = like.emptied()
    if move.base is not None:
        try:
            trained = MultiTable.load(move.base.tables, shard=keep, without=JOB_TABLES)
        except FileNotFoundError as error:
            raise ArtifactError(f"{error}: the base was removed meanwhile; begin with a newer one") from error
        trained.copy_to(tables)
    with opened(move.segments) as held:
        replay(held, tables, keep)
    return tables
