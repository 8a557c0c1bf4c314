"""Reading a delta log: which segments lead from one state to another, replaying them, and following a live log.

Every segment is checked whole before its first row changes, so the tables are always at some sequence.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from monolith import _native
from monolith.artifacts.delta_log.segment import (
    Segment,
    native_tables,
    read_segment,
    segment_numbers,
    segment_path,
)
from monolith.core.clock import Clock
from monolith.core.errors import ConfigError, DeltaLogBroken, SnapshotCorrupt

if TYPE_CHECKING:
    from monolith.embedding import MultiTable

__all__ = ["DeltaReader", "Replayed"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Where the tables are after a replay."""

    sequence: int
    marks: bytes
    """What the writer's ``marks`` gave at this sequence; empty when its segment is gone."""
    segments: int
    upserts: int
    tombstones: int
    newest_event_s: int


class DeltaReader:
    """The segments in one log's folder. Reading needs no writer, and does not disturb one."""

    def __init__(self, folder: str | PathLike[str]) -> None:
        self.folder = Path(folder)

    def segments(self, after: int = 0) -> list[Segment]:
        """Return all segments after a sequence, as their headers describe them.

        Raises:
            DeltaLogBroken: A header is damaged.
        """
        numbers = [number for number in segment_numbers(self.folder) if number > after]
        return [self.read(number) for number in numbers]

    def newest(self) -> int:
        """Return the newest segment's number; 0 when there is none."""
        numbers = segment_numbers(self.folder)
        return numbers[-1] if numbers else 0

    def last(self) -> Segment | None:
        """Return the newest segment, as its header describes it; None when there is none.

        Raises:
            DeltaLogBroken: The header is damaged.
        """
        number = self.newest()
        return self.read(number) if number else None

    def plan(self, after: int = 0, until: int | None = None, until_time_s: float | None = None) -> list[Segment]:
        """Return the segments that a replay would read, in order; see ``replay``.

        Raises:
            DeltaLogBroken: A segment on the way is missing or its header damaged.
        """
        numbers = segment_numbers(self.folder)
        if after and (not numbers or after > numbers[-1]):
            end = f"ends at {numbers[-1]}" if numbers else "is empty"
            raise DeltaLogBroken(
                f"the delta log '{self.folder}' {end}, but the state to go on from is at {after}; give the folder that "
                f"this state was written beside",
                last_good=after,
            )
        chosen: list[Segment] = []
        for number in reversed(numbers):
            if number <= after:
                break
            if until is not None and number > until:
                continue
            segment = self.read(number)
            if until_time_s is not None and segment.wall_time_s > until_time_s:
                continue
            chosen.append(segment)
            if segment.is_complete:
                break
        chosen.reverse()
        self._check_chain(after, until, chosen)
        return chosen

    def _check_chain(self, after: int, until: int | None, chosen: list[Segment]) -> None:
        if chosen and not chosen[0].is_complete and chosen[0].previous != after:
            self._refuse_gap(after, chosen[0])
        for one, other in itertools.pairwise(chosen):
            if other.previous != one.sequence:
                self._refuse_gap(one.sequence, other)
            if other.log != one.log or other.shard != one.shard or other.flavour != one.flavour:
                raise DeltaLogBroken(
                    f"'{other.path}' is of another log than '{one.path}'; the last good segment is {one.sequence}: put "
                    f"the right file back, or start from a newer snapshot",
                    last_good=one.sequence,
                )
        reached = chosen[-1].sequence if chosen else after
        if until is not None and until > reached:
            raise DeltaLogBroken(
                f"the delta log '{self.folder}' has no segment {until}; it leads to {reached}", last_good=reached
            )

    def _refuse_gap(self, good: int, segment: Segment) -> None:
        raise DeltaLogBroken(
            f"the delta log '{self.folder}' has a gap: '{segment.path.name}' follows segment {segment.previous}, the "
            f"last good one before it is {good}; start from a snapshot that is not older than {segment.previous}",
            last_good=good,
        )

    def replay(
        self,
        tables: MultiTable,
        *,
        after: int = 0,
        until: int | None = None,
        until_time_s: float | None = None,
        keep: tuple[int, int] = (0, 1),
    ) -> Replayed:
        """Bring tables from one sequence to a later one.

        Segments before the last one that holds all rows are not needed and not read. Replaying twice does no harm.

        Args:
            tables: Tables in the state of ``after``: empty for 0, or restored from a snapshot that was taken at that
                sequence (``DeltaWriter.cut``). They have the names and slices of the writer's.
            after: The sequence they are at.
            until: The last sequence wanted; None = as far as the log goes.
            until_time_s: Stop before the first segment that was taken later, in unix seconds.
            keep: (index, count): take only ids with ``uint64(id) % count == index``.

        Raises:
            DeltaLogBroken: A segment is missing, cut off or altered. The tables are at the last segment that was
                sound; another replay with ``until=error.last_good`` takes what there is.
            SchemaMismatch: The tables are not those of the log.
        """
        index, count = keep
        if not 0 <= index < count:
            raise ConfigError(f"keep is {keep}; give (index, count) with index from 0 to count - 1")
        planned = self.plan(after, until, until_time_s)
        natives = native_tables(tables)
        reached = after
        for segment in planned:
            self._checked(reached, lambda: _native.replay_delta(str(segment.path), natives, index, count))  # noqa: B023
            reached = segment.sequence
        return Replayed(
            sequence=reached,
            marks=self.marks(reached),
            segments=len(planned),
            upserts=sum(segment.upserts for segment in planned),
            tombstones=sum(segment.tombstones for segment in planned),
            newest_event_s=planned[-1].newest_event_s if planned else 0,
        )

    def verify(self, segment: Segment) -> None:
        """Check every byte of a segment.

        Raises:
            DeltaLogBroken: It is damaged.
        """
        self._checked(segment.previous, lambda: _native.verify_delta(str(segment.path)))

    def marks(self, sequence: int) -> bytes:
        """Return the bytes the writer kept with a segment; empty when the segment is not there."""
        path = segment_path(self.folder, sequence)
        return _native.read_delta_marks(str(path)) if path.exists() else b""

    def follow(
        self, after: int = 0, *, clock: Clock, is_stopped: Callable[[], bool], poll_s: float = 0.1
    ) -> Iterator[Segment]:
        """Give segment after segment as they are written, from the one after ``after`` on.

        Args:
            after: The sequence that the caller is at.
            clock: How to wait.
            is_stopped: Asked whenever there is nothing new; True ends the iteration.
            poll_s: How long to wait before looking again.

        Raises:
            DeltaLogBroken: A segment was removed before it was read, or is damaged; start from a snapshot again.
        """
        while True:
            for segment in self.plan(after):
                yield segment
                after = segment.sequence
            if is_stopped():
                return
            clock.sleep_s(poll_s)

    def read(self, number: int) -> Segment:
        """Return the segment of a number, as its header describes it.

        Raises:
            DeltaLogBroken: It is not there, or its header is damaged.
        """
        path = segment_path(self.folder, number)
        segment = self._checked(number - 1, lambda: read_segment(path))
        if segment.sequence != number:
            raise DeltaLogBroken(
                f"'{path}' is segment {segment.sequence} under another name; give it back its own",
                last_good=number - 1,
            )
        return segment

    def _checked(self, good: int, read: Callable[[], _T]) -> _T:
        """Return what ``read`` returns; tell the last good sequence when it fails."""
        try:
            return read()
        except SnapshotCorrupt as error:
            raise DeltaLogBroken(
                f"{error}; the last good segment is {good}: read until there, or start from a newer snapshot",
                last_good=good,
            ) from error
        except FileNotFoundError as error:
            raise DeltaLogBroken(
                f"{error}: it was removed meanwhile; start from a newer snapshot", last_good=good
            ) from error
