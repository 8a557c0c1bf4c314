"""``RecordJoiner``: parser, watermark, core and assembler as one function from input records to output records.

The caller reads the input, passes the clock, and writes rows and dead letters. One thread uses a joiner.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from monolith.stream.assembly import AssembledRow, RowAssembler
from monolith.stream.core import JoinCore
from monolith.stream.events import Impression, Row
from monolith.stream.parsing import DeadLetter, EventParser, RecordPlace
from monolith.stream.watermark import WatermarkTracker

__all__ = ["JoinedRecord", "RecordJoiner"]


@dataclass(frozen=True, slots=True)
class JoinedRecord:
    """Output of one input step."""

    rows: list[AssembledRow] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)


class RecordJoiner:
    """Joins records of several partitions.

    Args:
        core: Applies the rules.
        tracker: Knows the partitions.
        parser: Parses the records of every topic.
    """

    def __init__(self, core: JoinCore, tracker: WatermarkTracker, parser: EventParser) -> None:
        self.core = core
        self.tracker = tracker
        self.parser = parser
        self._assembler = RowAssembler()

    def add(
        self,
        value: bytes,
        place: RecordPlace,
        *,
        ingest_time_ms: int,
        clock_ms: int,
        key: bytes = b"",
        time_ms: int | None = None,
        partition: int | None = None,
        join_time_ms: int = 0,
    ) -> JoinedRecord:
        """Join one record and return the output that it causes.

        Args:
            value: The value of the record.
            place: The place of the record.
            ingest_time_ms: Append time of the record.
            clock_ms: Monotonic clock of the reader.
            key: The key of the record.
            time_ms: The time of the record.
            partition: Number of the partition in the tracker; None is ``place.partition``. Two topics need two numbers.
            join_time_ms: Wall time for the output rows; 0 leaves it absent.
        """
        number = place.partition if partition is None else partition
        ingest_time_ms = self.tracker.ingest_time(number, ingest_time_ms)
        events = self.parser.parse(value, place, key=key, time_ms=time_ms, ingest_time_ms=ingest_time_ms)
        if isinstance(events, DeadLetter):
            return JoinedRecord(dead_letters=[events])
        rows: list[Row] = []
        for event in events:
            rows += self.core.on_impression(event) if isinstance(event, Impression) else self.core.on_action(event)
            self.tracker.observe(number, event.time_ms, ingest_time_ms, clock_ms=clock_ms)
        return self._emit([*rows, *self._advance(clock_ms)], join_time_ms)

    def advance(self, clock_ms: int, *, join_time_ms: int = 0) -> JoinedRecord:
        """Raise the watermark to the clock and return the rows of windows that close, for silent inputs."""
        return self._emit(self._advance(clock_ms), join_time_ms)

    def finish(self, *, join_time_ms: int = 0) -> JoinedRecord:
        """Close every window at the end of a finite input and return the rows."""
        return self._emit(self.core.on_watermark(self.tracker.finish()), join_time_ms)

    def _advance(self, clock_ms: int) -> list[Row]:
        watermark_ms = self.tracker.advance(clock_ms)
        return [] if watermark_ms is None else self.core.on_watermark(watermark_ms)

    def _emit(self, rows: list[Row], join_time_ms: int) -> JoinedRecord:
        return JoinedRecord(rows=[self._assembler.assemble(row, join_time_ms=join_time_ms) for row in rows])
