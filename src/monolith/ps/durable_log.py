"""``DurableLog``: the updates of a server since the newest checkpoint, on disk.

The server writes one segment per interval (:mod:`monolith.artifacts.delta_log`) and replays the log after a crash. A
log belongs to the tables of a server in three cases:

* The snapshot names the log and one of its segments: replay the segments after it.
* The log started on this snapshot, which names no log: replay all of it.
* There is no snapshot: replay the log from its beginning.

Any other log is foreign: of a run whose checkpoints are gone, of another number of servers, of other tables. A foreign
log is never deleted, because its updates were acknowledged. The server moves its segments to a subfolder
``foreign-<time>`` and starts a new log, whose first segment holds all rows. Without a snapshot no row would be left:
the server then refuses to start with the log of another number of servers, unless ``discard_log`` is set.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from monolith import _native
from monolith.artifacts.delta_log import DeltaReader, DeltaWriter, LogPosition, Segment, position_in, set_aside_log
from monolith.core.clock import Clock
from monolith.core.errors import ArtifactError, ConfigError, DeltaLogBroken, MonolithError
from monolith.embedding.multi_table import MultiTable
from monolith.embedding.snapshot import SavedTable
from monolith.ps.job_records import decode_logged_state, encode_logged_state

__all__ = ["DurableLog"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class DurableLog:
    """The delta log of one server. Thread safe.

    Args:
        folder: Folder of this log only.
        index: Shard of the server.
        shards: Number of shards.
        clock: Stamps segments.
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
        """Number of failed writes; the next segment contains their updates."""
        self.error = ""
        """Error of the newest write; empty if it succeeded."""

    # --- recovery ---

    def check_shards(self) -> None:
        """Check, before a server without a snapshot starts, that the log is of the same number of servers.

        Raises:
            ConfigError: The log is of another number; recovery could use none of its updates.
        """
        last = self._reader.last()
        if last is not None and last.shard[1] != self._place[1]:
            raise ConfigError(
                f"delta_log '{self.folder}' is of {last.shard[1]} servers, this server is one of {self._place[1]}, and "
                f"there is no checkpoint to recover from; start {last.shard[1]} servers, or set the log aside with "
                "--discard-log"
            )

    def recover(self, model: MultiTable, shard: _native.PsShard, saved: Sequence[SavedTable]) -> None:
        """Replay the log into tables that hold a snapshot or nothing; continue the log from there.

        Args:
            model: The tables.
            shard: Gets the marks of the pushes in the log, and the job state.
            saved: Tables of the snapshot's manifest; empty without a snapshot.

        Raises:
            SchemaMismatch: The log is of other tables; nothing was changed.
            DeltaLogBroken: A segment is corrupt or missing.
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
                self._restart(model, shard, generation, f"log of shard {last.shard}, or of another run")
                return
            try:
                replayed = self._reader.replay(model, after=after)
            except DeltaLogBroken as error:
                raise DeltaLogBroken(
                    f"{error}; or move '{self.folder}' away to recover from the checkpoint alone",
                    last_good=error.last_good,
                ) from error
            if replayed.marks:
                marks, records = decode_logged_state(replayed.marks)
                shard.restore_client_marks(marks)
                shard.replace_job_records(records)
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

    def restart(self, model: MultiTable, shard: _native.PsShard, saved: Sequence[SavedTable], reason: str) -> None:
        """Set the foreign log aside, and start a new log with the tables as they are."""
        with self._lock:
            self._close()
            self._restart(model, shard, saved[0].generation if saved else None, reason)

    def _after(self, last: Segment, saved: Sequence[SavedTable]) -> int | None:
        """Return the sequence after which to replay the log; None for a foreign log."""
        index, shards = self._place
        if last.shard[1] != shards:
            return None
        if last.shard[0] != index or last.flavour != "durable":
            raise ConfigError(
                f"delta_log '{self.folder}' is the {last.flavour} log of shard {last.shard[0]}, this is shard {index}; "
                "give each server its own folder"
            )
        position = position_in(saved, index, shards)
        if position is not None and position.log == last.log:
            return position.sequence
        starts_here = not saved or saved[0].generation == last.log
        return 0 if starts_here else None

    def _restart(self, model: MultiTable, shard: _native.PsShard, generation: int | None, reason: str) -> None:
        aside = set_aside_log(self.folder, int(self._clock.now_s()))
        logger.warning("delta log restarted, foreign segments set aside folder=%s reason=%s", aside, reason)
        self._open(model, shard, 0, generation)

    def _open(self, model: MultiTable, shard: _native.PsShard, holds: int, generation: int | None) -> None:
        self._writer = DeltaWriter(
            self.folder,
            self._place,
            model,
            clock=self._clock,
            lock=shard.pause_pushes(),
            marks=lambda: encode_logged_state(shard.client_marks(), shard.job_records()),
            holds=holds,
            log=generation,
        )

    @contextmanager
    def replacing(self, model: MultiTable, shard: _native.PsShard) -> Iterator[None]:
        """Replace all rows in the block, then write them as one segment; no other segment is written meanwhile.

        Raises:
            ArtifactError: The segment could not be written; a crash would bring back the earlier rows.
        """
        with self._lock:
            yield
            if self._writer is None:
                self._open(model, shard, 0, None)
            else:  # it stays open: a server without a writer would lose updates in silence
                self._writer.begin_again()
            sequence = self.flush()
            assert self._writer is not None
            self._writer.compact(sequence)

    # --- writing ---

    @property
    def position(self) -> LogPosition | None:
        """The newest segment; None before the tables exist."""
        writer = self._writer
        return None if writer is None else LogPosition(writer.log, writer.sequence)

    @property
    def age_s(self) -> float:
        """Seconds since all updates were on disk."""
        return self._clock.monotonic_s() - self._written_at_s

    def flush(self) -> int:
        """Write all updates; return the newest sequence.

        Raises:
            ArtifactError: The write failed; the next segment contains the updates.
        """

        def write(writer: DeltaWriter) -> int:
            writer.write()
            return writer.sequence

        return self._write(write) or 0

    def cut(self, take: Callable[[], T]) -> tuple[LogPosition | None, T]:
        """Call ``take`` at the instant of a segment; return the position of the segment and the result.

        Raises:
            ArtifactError: The segment could not be written.
        """
        written = self._write(lambda writer: (writer.log, *writer.cut(take)))
        if written is None:
            return None, take()
        log, sequence, result = written
        return LogPosition(log, sequence), result

    def compact(self, position: LogPosition) -> int:
        """Remove segments that the newest checkpoint contains; return their number, 0 for another log."""
        with self._lock:
            if self._writer is None or self._writer.log != position.log:
                return 0
            return self._writer.compact(position.sequence)

    def _write(self, write: Callable[[DeltaWriter], T]) -> T | None:
        with self._lock:
            started_s = self._clock.monotonic_s()
            if self._writer is None:
                self._written_at_s = started_s
                return None
            try:
                done = write(self._writer)
            except MonolithError:  # of a cut that is void; the log is sound
                raise
            except Exception as error:  # mostly a full disk; a crash now loses updates
                self.failures += 1
                trace = None if isinstance(error, OSError) else error
                text = str(error) if trace is None else f"{type(error).__name__}: {error}"
                if not self.error:
                    logger.error(
                        "delta log write failed, retrying folder=%s error=%s", self.folder, text, exc_info=trace
                    )
                self.error = text
                remedy = "free some space" if trace is None else "take a checkpoint, then report this error"
                raise ArtifactError(
                    f"delta log '{self.folder}' cannot be written: {text}; {remedy}. No update is lost yet"
                ) from error
            if self.error:
                logger.info("delta log write succeeded again folder=%s", self.folder)
            self.error = ""
            self._written_at_s = started_s
            return done

    def close(self) -> None:
        """Close the log, so that another process can write to it. Does not flush."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
