"""Plan and apply the changes that bring tables to the rows of a cut.

``plan_update`` chooses the segments. ``RowUpdate.open`` checks every byte of them and returns a ``Move``, which changes
tables in place. ``rebuild_tables`` builds new tables where an in-place change is not possible: at the start, after a
rollback of the trainer, and where segments are missing.

The functions have no state. A ``Move`` is used by one thread.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from monolith import _native
from monolith.artifacts.delta_log import Cut, DeltaReader, LogPosition, Segment, shard_folder
from monolith.core.errors import ArtifactError, DeltaLogBroken
from monolith.core.scratch_folder import ScratchFolder
from monolith.embedding import MultiTable
from monolith.embedding.specs import JOB_TABLES
from monolith.sync.base_snapshot import BaseSnapshot, read_base

__all__ = ["Move", "RowUpdate", "Touched", "iterate_segments", "open_segments", "plan_update", "rebuild_tables"]

MAX_OPEN = 64
"""Segments that are open together. A log may have thousands, and a process 1024 descriptors."""

Touched: TypeAlias = Mapping[str, NDArray[np.int64]]
"""Ids by table, unique and ascending."""


class Move:
    """Verified segments that change the rows of tables.

    Args:
        segments: The segments, all of one shard before those of the next. Every byte was checked.
        keep: (index, count): only ids with ``uint64(id) % count == index`` are taken.
    """

    def __init__(self, segments: Sequence[Segment], keep: tuple[int, int]) -> None:
        self._segments = segments
        self._keep = keep
        self.has_begun = False
        """Whether ``apply`` was called."""

    def apply(self, tables: MultiTable) -> None:
        """Replay the segments into tables.

        Raises:
            SchemaMismatch: The segments belong to other tables. The segment that fails changes nothing.
        """
        self.has_begun = True
        natives = [tables[name]._native for name in tables]
        for segment in self._segments:
            _native.replay_delta(str(segment.path), natives, *self._keep)

    def touched_ids(self) -> Touched | None:
        """Return the ids whose rows change or disappear, by table; None if a segment replaces a whole table."""
        if any(table.is_complete for segment in self._segments for table in segment.tables.values()):
            return None
        ids: dict[str, list[NDArray[np.int64]]] = {}
        for segment in self._segments:
            for name, keys in zip(segment.tables, _native.read_delta_ids(str(segment.path), *self._keep), strict=True):
                ids.setdefault(name, []).append(keys)
        return {name: np.unique(np.concatenate(each)) for name, each in ids.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowUpdate:
    """The segments that lead from the present rows to the rows of a cut."""

    segments: Sequence[Segment]
    """Segments to replay, in order."""
    positions: Mapping[int, LogPosition]
    """Positions of the tables after the update, by shard."""
    is_full_rebuild: bool
    """True: start from empty tables or from ``base``. False: change the tables in use."""
    base: BaseSnapshot | None = None
    newest: Sequence[Segment] = ()
    """The segments that the cut names, replayed or not."""

    @property
    def rows(self) -> int:
        """Rows that the update writes or removes."""
        return sum(segment.upserts + segment.tombstones for segment in self.segments)

    @contextmanager
    def open(self, keep: tuple[int, int]) -> Iterator[Move]:
        """Open and verify the segments; yield the ``Move`` that applies them.

        Args:
            keep: (index, count): take only ids with ``uint64(id) % count == index``.

        Raises:
            DeltaLogBroken: A segment is missing or damaged.
        """
        with open_segments(self.segments) as segments:
            yield Move(segments, keep)


def plan_update(root: Path, cut: Cut, at: Mapping[int, LogPosition]) -> RowUpdate:
    """Return the update from the present positions, by shard, to a cut.

    Raises:
        DeltaLogBroken: Segments are missing or damaged, and no base snapshot replaces them.
    """
    readers = _readers(root, cut)
    newest = [reader.read(cut.sequences[shard]) for shard, reader in enumerate(readers) if cut.sequences[shard]]
    logs = {segment.shard[0]: segment.log for segment in newest}
    goal = {shard: LogPosition(logs.get(shard, 0), sequence) for shard, sequence in sorted(cut.sequences.items())}
    if at.keys() == goal.keys() and all(_leads_to(at[shard], goal[shard]) for shard in goal):
        try:
            segments = _segments(readers, at, cut)
        except DeltaLogBroken:
            pass  # compaction removed the segments; rebuild
        else:
            if not any(segment.is_complete for segment in segments):
                return RowUpdate(segments=segments, positions=goal, is_full_rebuild=False, newest=newest)
    start = {shard: LogPosition(position.log, 0) for shard, position in goal.items()}
    try:
        return RowUpdate(segments=_segments(readers, start, cut), positions=goal, is_full_rebuild=True, newest=newest)
    except DeltaLogBroken:
        base = read_base(root)
        if base is None or base.positions.keys() != goal.keys():
            raise
        if not all(_leads_to(base.positions[shard], goal[shard]) for shard in goal):
            raise
        segments = _segments(readers, base.positions, cut)
        return RowUpdate(segments=segments, positions=goal, is_full_rebuild=True, base=base, newest=newest)


def _readers(root: Path, cut: Cut) -> list[DeltaReader]:
    count = len(cut.sequences)
    if cut.folders:
        return [DeltaReader(os.path.normpath(root / folder)) for folder in cut.folders]
    return [DeltaReader(shard_folder(root, shard, count)) for shard in range(count)]


def _leads_to(one: LogPosition, other: LogPosition) -> bool:
    return one.sequence <= other.sequence and (one.log == other.log or not one.sequence)


def _segments(readers: Sequence[DeltaReader], after: Mapping[int, LogPosition], cut: Cut) -> list[Segment]:
    segments: list[Segment] = []
    for shard, reader in enumerate(readers):
        if after[shard].sequence < cut.sequences[shard]:
            segments += reader.plan(after[shard].sequence, cut.sequences[shard])
    return segments


@contextmanager
def open_segments(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Open segments, check every byte, and yield them under paths that stay readable until the end.

    A segment that compaction removes meanwhile keeps its content. The first ``MAX_OPEN`` segments stay open, with
    paths ``/proc/self/fd/N``, which exist on Linux only. Further segments are copied to a temporary folder.

    Raises:
        DeltaLogBroken: A segment is missing or damaged.
    """
    with ExitStack() as stack:
        spool: Path | None = None
        opened: list[Segment] = []
        for segment in segments:
            try:
                if len(opened) < MAX_OPEN:
                    handle = os.open(segment.path, os.O_RDONLY)
                    stack.callback(os.close, handle)
                    path = Path(f"/proc/self/fd/{handle}")
                else:
                    spool = spool or stack.enter_context(ScratchFolder("monolith-segments-"))
                    path = spool / str(len(opened))
                    shutil.copyfile(segment.path, path)
            except FileNotFoundError as error:
                raise DeltaLogBroken(
                    f"'{segment.path}' was removed meanwhile; read a newer cut", last_good=segment.previous
                ) from error
            pinned = dataclasses.replace(segment, path=path)
            try:
                DeltaReader(segment.path.parent).verify(pinned)
            except DeltaLogBroken as error:  # the text names the path of the open file
                text = str(error).replace(str(path), str(segment.path))
                raise DeltaLogBroken(text, last_good=error.last_good) from error
            opened.append(pinned)
        yield opened


def iterate_segments(segments: Sequence[Segment]) -> Iterator[Segment]:
    """Yield verified segments in order. At most ``MAX_OPEN`` are open together.

    Use it where a failure in the middle is harmless; ``open_segments`` verifies all segments first.

    Raises:
        DeltaLogBroken: A segment is missing or damaged.
    """
    for first in range(0, len(segments), MAX_OPEN):
        with open_segments(segments[first : first + MAX_OPEN]) as window:
            yield from window


def rebuild_tables(update: RowUpdate, like: MultiTable, keep: tuple[int, int]) -> MultiTable:
    """Return new tables with the rows that a full rebuild leads to.

    Args:
        update: The update; it starts from empty tables or from its base.
        like: Tables with the specs to use.
        keep: (index, count): take only ids with ``uint64(id) % count == index``.

    Raises:
        DeltaLogBroken: A segment is missing or damaged.
        ArtifactError: The base snapshot is missing or damaged.
        SchemaMismatch: The rows belong to other tables.
    """
    tables = like.emptied()
    if update.base is not None:
        try:
            trained = MultiTable.load(update.base.tables, shard=keep, without=JOB_TABLES)
        except FileNotFoundError as error:
            raise ArtifactError(f"{error}: the base snapshot was removed meanwhile; read a newer one") from error
        trained.copy_to(tables)
    for segment in iterate_segments(update.segments):
        Move([segment], keep).apply(tables)
    return tables
