"""What a server has learnt since the newest checkpoint, on disk: written once per interval, replayed after a crash.

The segments are those of :mod:`monolith.artifacts.delta_log`. Here is which of them belong to the tables of a server:

* A log belongs to a snapshot that names it and one of its segments: what comes after that segment is replayed.
* It belongs to the snapshot that it was begun on, until there is a newer one: all of it is replayed.
* Without a snapshot it is replayed from its beginning.

Any other log in the folder is foreign: of a run whose checkpoints are gone, of another number of servers, of other
tables. It is removed, and a new one begins, whose first segment holds all rows. The same happens, within the log, when
somebody replaces the rows by those of a snapshot of his choice.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from monolith import _native
from monolith.artifacts.delta_log import DeltaReader, DeltaWriter, LogPosition, Segment, position_in, remove_log
from monolith.core.clock import Clock
from monolith.core.errors import ArtifactError, ConfigError, DeltaLogBroken
from monolith.embedding.multi_table import MultiTable
from monolith.embedding.snapshot import SavedTable

__all__ = ["DurableLog"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class DurableLog:
    """The delta log of one server. Safe to use from several threads.

    Args:
        folder: The log's own folder.
        index: The server's shard.
        shards: Of so many.
        clock: What segments are stamped with.
    """

    def __init__(self, folder: Path, index: int, shards: int, clock: Clock) -> None:
        self.folder = folder
        self._place = index, shards
        self._clock = clock
        self._reader = DeltaReader(folder)
        self._writer: DeltaWriter | None = None
        self._lock = threading.RLock()
        self._written_at_s = clock.monotonic_s()
        self.failures = 0
        """Segments that could not be written; what was in them came, or comes, with the next one."""
        self.error = ""
        """Why the newest segment could not be written; empty when it could."""

    # --- coming to be ---

    def recover(self, model: MultiTable, shard: _native.PsShard, saved: Sequence[SavedTable]) -> None:
        """Bring tables that hold a snapshot, or nothing, to where the log leads; go on with the log from there.

        Args:
            model: The tables.
            shard: Remembers the pushes that are in the tables.
            saved: What the snapshot's manifest says; empty when there is none.

        Raises:
            SchemaMismatch: The log is of other tables; nothing was changed.
            DeltaLogBroken: A segment is damaged or missing.
        """
        with self._lock:
            self._close()
            last = self._reader.last()
            generation = saved[0].generation if saved else None
            if last is None:
                self._open(model, shard, 0, generation)
                return
            after = self._after(last, saved)
            if after is None:
                self._begin_anew(model, shard, generation, f"it is of shard {last.shard}, or of another run")
                return
            try:
                replayed = self._reader.replay(model, after=after)
            except DeltaLogBroken as error:
                raise DeltaLogBroken(
                    f"{error}; or move '{self.folder}' away to go on from the checkpoint alone",
                    last_good=error.last_good,
                ) from error
            if replayed.marks:
                shard.restore_client_marks(replayed.marks)
            self._open(model, shard, replayed.sequence, generation)
        logger.info(
            "delta log replayed folder=%s after=%d sequence=%d segments=%d rows=%d removed=%d",
            self.folder,
            after,
            replayed.sequence,
            replayed.segments,
            replayed.upserts,
            replayed.tombstones,
        )

    def begin_anew(self, model: MultiTable, shard: _native.PsShard, saved: Sequence[SavedTable], why: str) -> None:
        """Remove the log, which is foreign, and begin another one with the tables as they are."""
        with self._lock:
            self._close()
            self._begin_anew(model, shard, saved[0].generation if saved else None, why)

    def _after(self, last: Segment, saved: Sequence[SavedTable]) -> int | None:
        """Return the sequence from which the log is to be replayed; None when it is foreign."""
        index, shards = self._place
        if last.shard[1] != shards:
            return None
        if last.shard[0] != index or last.flavour != "durable":
            raise ConfigError(
                f"delta_log '{self.folder}' is the {last.flavour} log of shard {last.shard[0]}, this is shard {index}; "
                "give each server a folder of its own"
            )
        position = position_in(saved, index, shards)
        if position is not None and position.log == last.log:
            return position.sequence
        is_begun_here = not saved or saved[0].generation == last.log
        return 0 if is_begun_here else None

    def _begin_anew(self, model: MultiTable, shard: _native.PsShard, generation: int | None, why: str) -> None:
        removed = remove_log(self.folder)
        logger.warning("the delta log begins anew folder=%s removed=%d reason=%s", self.folder, removed, why)
        self._open(model, shard, 0, generation)

    def _open(self, model: MultiTable, shard: _native.PsShard, holds: int, generation: int | None) -> None:
        self._writer = DeltaWriter(
            self.folder,
            self._place,
            model,
            clock=self._clock,
            lock=shard.pause_pushes(),
            marks=shard.client_marks,
            holds=holds,
            log=generation,
        )

    @contextmanager
    def replacing(self, model: MultiTable, shard: _native.PsShard) -> Iterator[None]:
        """Let the block replace all rows, and write them all as one segment; nothing is written meanwhile.

        Raises:
            ArtifactError: The segment could not be written; a crash would bring back the rows of before.
        """
        with self._lock:
            yield
            generation = None if self._writer is None else self._writer.log
            self._close()
            self._open(model, shard, 0, generation)
            sequence = self.flush()
            assert self._writer is not None
            self._writer.compact(sequence)

    # --- writing ---

    @property
    def position(self) -> LogPosition | None:
        """The newest segment; None before there are tables."""
        writer = self._writer
        return None if writer is None else LogPosition(writer.log, writer.sequence)

    @property
    def age_s(self) -> float:
        """Seconds since all changes were on disk."""
        return self._clock.monotonic_s() - self._written_at_s

    def flush(self) -> int:
        """Write what has changed; return the newest sequence.

        Raises:
            ArtifactError: It could not be written, and comes with the next segment.
        """

        def write(writer: DeltaWriter) -> int:
            writer.write()
            return writer.sequence

        return self._written(write) or 0

    def cut(self, take: Callable[[], T]) -> tuple[LogPosition | None, T]:
        """Call ``take`` at the instant of a segment; return which one, and what it returned.

        Raises:
            ArtifactError: The segment could not be written.
        """
        found = self._written(lambda writer: (writer.log, *writer.cut(take)))
        if found is None:
            return None, take()
        log, sequence, taken = found
        return LogPosition(log, sequence), taken

    def compact(self, position: LogPosition) -> int:
        """Remove segments that the newest checkpoint contains; return how many. Of another log: none."""
        with self._lock:
            if self._writer is None or self._writer.log != position.log:
                return 0
            return self._writer.compact(position.sequence)

    def _written(self, write: Callable[[DeltaWriter], T]) -> T | None:
        with self._lock:
            started_s = self._clock.monotonic_s()
            if self._writer is None:
                self._written_at_s = started_s
                return None
            try:
                done = write(self._writer)
            except OSError as error:
                self.failures += 1
                if not self.error:
                    logger.error("the delta log cannot be written; trying again folder=%s error=%s", self.folder, error)
                self.error = str(error)
                raise ArtifactError(
                    f"the delta log '{self.folder}' cannot be written: {error}; free some space. Nothing is lost yet"
                ) from error
            if self.error:
                logger.info("the delta log is written again folder=%s", self.folder)
            self.error = ""
            self._written_at_s = started_s
            return done

    def close(self) -> None:
        """Let another process write to it. What was not written stays unwritten."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
