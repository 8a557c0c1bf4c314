"""``RankPublisher``: publishes the rows of all ranks and the dense weights of one step boundary.

Each rank writes a delta log of the rows that it holds. All ranks write a segment at the same step boundary. Rank 0
gathers the positions and names them together as a cut. Every call except ``close`` and ``after_save`` is collective:
all ranks make it, in the same order, from the thread of the loop. Rank 0 measures the time of a step and announces with
each publish after how many steps the next one follows, so that the steps between need no agreement.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typing_extensions import override

from monolith.artifacts.delta_log import DeltaWriter, Flavour, LogPosition, shard_folder
from monolith.core.clock import Clock
from monolith.core.errors import MonolithError
from monolith.embedding import MultiTable
from monolith.embedding.ranks.channel import Channel
from monolith.sync.base_snapshot import BaseSnapshot
from monolith.sync.publisher import LogPositions, Publisher, RowLogs, Weights

__all__ = ["RankPublisher"]

logger = logging.getLogger(__name__)

_MOST_STEPS = 10_000


class RankPublisher:
    """Publishes one rank's part of every cut; rank 0 publishes the cut.

    Args:
        root: Published folder, which all ranks see.
        tables: The rows of this rank.
        channel: The channel of the thread that trains.
        weights: Copies the dense weights, which are equal at all ranks.
        every_s: Seconds from one publish to the next.
        clock: Clock of rank 0's schedule, and of timestamps.
        flavour: The form of the rows.
    """

    def __init__(
        self,
        root: Path,
        tables: MultiTable,
        channel: Channel,
        weights: Callable[[], Weights],
        *,
        every_s: float,
        clock: Clock,
        flavour: Flavour,
    ) -> None:
        self._channel = channel
        self._every_s = every_s
        self._clock = clock
        self._log = _RankLog(root, tables, channel, clock, flavour)
        self.publisher: Publisher | None = None
        """Rank 0: writes the cuts."""
        if channel.is_chief:
            self.publisher = Publisher(root, self._log, weights, clock=clock)
        self._published_at_s = clock.monotonic_s()
        self._published_step = 0
        self._due_step = 0
        self._saved: dict[int, LogPositions] = {}
        self._compacts: int | None = None

    def is_due(self, step: int) -> bool:
        """Return whether the ranks publish after ``step``; the same at all ranks."""
        return step >= self._due_step

    def publish(self, step: int) -> LogPositions | None:
        """Write a segment at every rank, and the cut at rank 0; return the positions at rank 0, None after a failure.

        A failure of any rank leaves the current cut; the next publish covers the changes.
        """
        state = None
        if self.publisher is None:
            self._log.follow()
        else:
            try:
                state = self.publisher.publish()
            except (MonolithError, OSError) as error:
                logger.error("publish failed, retrying folder=%s error=%s", self.publisher.root, error)
        self._announce(step)
        return state

    def _announce(self, step: int) -> None:
        """Agree on the step of the next publish, and on the checkpoint that the logs may begin with."""
        message: dict[str, Any] = {}
        if self.publisher is not None:
            message = {"after": self._steps_to_next(step), "compacts": self._compacts}
            self._compacts = None
        message = json.loads(self._channel.broadcast_bytes(json.dumps(message).encode()))
        self._due_step = step + message["after"]
        if message["compacts"] is not None:
            self._log.compact_to_step(message["compacts"])

    def _steps_to_next(self, step: int) -> int:
        now_s = self._clock.monotonic_s()
        steps, seconds = step - self._published_step, now_s - self._published_at_s
        self._published_step, self._published_at_s = step, now_s
        if steps <= 0 or seconds <= 0:
            return 1
        return max(1, min(_MOST_STEPS, math.floor(self._every_s * steps / seconds)))

    def before_save(self, step: int) -> None:
        """Publish, so that every log has a segment of the checkpoint's state."""
        state = self.publish(step)
        self._log.note_step(step)
        if state is not None:
            self._saved[step] = state

    def after_save(self, step: int, tables: Path) -> None:
        """Make a durable checkpoint the base of followers. Not collective: the next publish compacts the logs."""
        state = self._saved.pop(step, None)
        self._saved = {other: each for other, each in self._saved.items() if other > step}
        if state is None or self.publisher is None:
            return
        try:
            self.publisher.rebase(tables, state)
            self._compacts = step
        except (MonolithError, OSError) as error:
            logger.warning("log compaction failed path=%s error=%s", tables, error)

    def close(self) -> None:
        """Release the folder and the log. Not collective."""
        if self.publisher is not None:
            self.publisher.close()
        else:
            self._log.close()


class _RankLog(RowLogs):
    """The delta log of one rank; at rank 0 the logs of all ranks."""

    def __init__(self, root: Path, tables: MultiTable, channel: Channel, clock: Clock, flavour: Flavour) -> None:
        self.folders = tuple(shard_folder(root, rank, channel.size) for rank in range(channel.size))
        self._tables = tables
        self._channel = channel
        self._writer = DeltaWriter(
            self.folders[channel.rank], (channel.rank, channel.size), tables, clock=clock, flavour=flavour
        )
        self._sequence_of_step: dict[int, int] = {}

    @override
    def write(self, take: Callable[[], Weights]) -> tuple[LogPositions, Weights]:
        answers = [json.loads(answer) for answer in self._channel.gather_bytes(self._write_own())]
        weights = take()
        failed = [f"rank {rank}: {answer['failed']}" for rank, answer in enumerate(answers) if "failed" in answer]
        if failed:
            raise OSError("; ".join(failed))
        positions = {rank: LogPosition(answer["log"], answer["sequence"]) for rank, answer in enumerate(answers)}
        newest_event_s = max(answer["newest_event_s"] for answer in answers)
        return LogPositions(positions=positions, newest_event_s=newest_event_s), weights

    def follow(self) -> None:
        """Write the segment of a rank other than 0, and send its position to rank 0."""
        self._channel.gather_bytes(self._write_own())

    def _write_own(self) -> bytes:
        answer: dict[str, Any]
        try:
            self._writer.write()
            newest = max((self._tables[name].max_time_s for name in self._tables), default=0)
            answer = {"log": self._writer.log, "sequence": self._writer.sequence, "newest_event_s": newest}
        except (MonolithError, OSError) as error:
            answer = {"failed": str(error) or type(error).__name__}
        return json.dumps(answer).encode()

    def note_step(self, step: int) -> None:
        """Remember the newest segment as that of a checkpoint."""
        self._sequence_of_step[step] = self._writer.sequence

    def compact_to_step(self, step: int) -> None:
        """Remove the segments that the checkpoint of a step contains."""
        sequence = self._sequence_of_step.get(step)
        self._sequence_of_step = {other: each for other, each in self._sequence_of_step.items() if other > step}
        if sequence is None:
            return
        try:
            self._writer.compact(sequence)
        except (MonolithError, OSError) as error:
            logger.warning("log compaction failed folder=%s error=%s", self._writer.folder, error)

    @override
    def base_of(self, tables: Path, state: LogPositions) -> BaseSnapshot:
        return BaseSnapshot(tables=tables, positions=state.positions)

    @override
    def compact(self, base: BaseSnapshot) -> None:
        """Keep the segments: all ranks compact their logs with the next publish."""

    @override
    def drop_replaced(self) -> None:
        """Keep the segments: only checkpoints compact the logs of ranks."""

    @override
    def close(self) -> None:
        self._writer.close()
