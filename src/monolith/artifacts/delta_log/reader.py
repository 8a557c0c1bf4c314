"""Read a delta log: plan segments between two states, replay them, follow a live log.

Every segment is verified before its first row changes, so tables are always at some sequence. ``DeltaReader`` has no
mutable state and is thread safe.
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
    """Result of a replay."""

    sequence: int
    marks: bytes
    """Marks of the writer at this sequence; empty if the segment is gone."""
    segments: int
    upserts: int
    tombstones: int
    newest_event_s: int


class DeltaReader:
    """Reads the segments of one log. A concurrent writer is not affected."""

    def __init__(self, folder: str | PathLike[str]) -> None:
        self.folder = Path(folder)

    def segments(self, after: int = 0) -> list[Segment]:
        """Return the headers of all segments after a sequence.

        Raises:
            DeltaLogBroken: A header is damaged.
        """
        numbers = [number for number in segment_numbers(self.folder) if number > after]
        return [self.read(number) for number in numbers]

    def newest(self) -> int:
        """Return the number of the newest segment; 0 without one."""
        numbers = segment_numbers(self.folder)
        return numbers[-1] if numbers else 0

    def last(self) -> Segment | None:
        """Return the header of the newest segment; None without one.

        Raises:
            DeltaLogBroken: The header is damaged.
        """
        number = self.newest()
        return self.read(number) if number else None

    def plan(self, after: int = 0, until: int | None = None, until_time_s: float | None = None) -> list[Segment]:
        """Return the segments that ``replay`` reads, in order.

        Raises:
            DeltaLogBroken: A segment is missing, or a header is damaged.
        """
        numbers = segment_numbers(self.folder)
        if after and (not numbers or after > numbers[-1]):
            end = f"ends at {numbers[-1]}" if numbers else "is empty"
            raise DeltaLogBroken(
                f"delta log '{self.folder}' {end}, expected segment {after} of the present state; give the log of this "
                f"state",
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
                    f"'{other.path}' and '{one.path}' belong to different logs; segment {one.sequence} is good: "
                    f"restore the right file, or start from a newer snapshot",
                    last_good=one.sequence,
                )
        reached = chosen[-1].sequence if chosen else after
        if until is not None and until > reached:
            raise DeltaLogBroken(
                f"delta log '{self.folder}' ends at segment {reached}, expected segment {until}", last_good=reached
            )

    def _refuse_gap(self, good: int, segment: Segment) -> None:
        raise DeltaLogBroken(
            f"delta log '{self.folder}' has a gap: '{segment.path.name}' follows segment {segment.previous}, the last "
            f"good segment is {good}; start from a snapshot at {segment.previous} or later",
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
        """Move tables from one sequence to a later one.

        Segments before the last complete one are skipped. A replay is idempotent.

        Args:
            tables: Tables in the state of ``after``: empty for 0, or restored from a snapshot at that sequence
                (``DeltaWriter.cut``). Names and slices equal those of the writer's tables.
            after: Present sequence of the tables.
            until: Last sequence to replay; None means the newest.
            until_time_s: Stop before the first segment with a later time, in unix seconds.
            keep: (index, count): take only ids with ``uint64(id) % count == index``.

        Raises:
            DeltaLogBroken: A segment is missing, truncated or corrupt. The tables are at the last good segment;
                ``until=error.last_good`` replays up to there.
            SchemaMismatch: The log belongs to other tables.
        """
        index, count = keep
        if not 0 <= index < count:
            raise ConfigError(f"keep is {keep}, expected (index, count) with index from 0 to count - 1")
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
            DeltaLogBroken: The segment is damaged.
        """
        self._checked(segment.previous, lambda: _native.verify_delta(str(segment.path)))

    def marks(self, sequence: int) -> bytes:
        """Return the marks of a segment; empty if the segment does not exist."""
        path = segment_path(self.folder, sequence)
        return _native.read_delta_marks(str(path)) if path.exists() else b""

    def follow(
        self, after: int = 0, *, clock: Clock, is_stopped: Callable[[], bool], poll_s: float = 0.1
    ) -> Iterator[Segment]:
        """Yield segments as they are written, starting after ``after``.

        Args:
            after: Present sequence of the caller.
            clock: Clock of the pauses.
            is_stopped: Called when no new segment exists; True ends the iteration.
            poll_s: Seconds between two looks for new segments.

        Raises:
            DeltaLogBroken: A segment was removed before it was read, or is damaged; restart from a snapshot.
        """
        while True:
            for segment in self.plan(after):
                yield segment
                after = segment.sequence
            if is_stopped():
                return
            clock.sleep_s(poll_s)

    def read(self, number: int) -> Segment:
        """Return the header of a segment.

        Raises:
            DeltaLogBroken: The segment does not exist, or its header is damaged.
        """
        path = segment_path(self.folder, number)
        segment = self._checked(number - 1, lambda: read_segment(path))
        if segment.sequence != number:
            raise DeltaLogBroken(
                f"'{path}' is segment {segment.sequence}, expected segment {number}; restore its name",
                last_good=number - 1,
            )
        return segment

    def _checked(self, good: int, read: Callable[[], _T]) -> _T:
        """Call ``read``; on failure raise ``DeltaLogBroken`` with the last good sequence."""
        try:
            return read()
        except SnapshotCorrupt as error:
            raise DeltaLogBroken(
                f"{error}; the last good segment is {good}: read until there, or start from a newer snapshot",
                last_good=good,
            ) from error
        except FileNotFoundError as error:
            raise DeltaLogBroken(
                f"{error}: the segment was removed meanwhile; start from a newer snapshot", last_good=good
            ) from error
