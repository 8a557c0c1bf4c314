"""``JoinGroup``: the join of one partition group, exactly once across crashes.

A group reads its partition of every input topic, runs the core, and appends rows and dead letters to its partitions of
the output topics. Work is divided into commits. A commit is decided when the journal holds its record: the number of
records read from each input, and every step of the watermark. The core is a pure function of these, so a restart
repeats the commits after the newest snapshot and appends only the batches that the outputs lack.

One thread uses a group.
"""

from __future__ import annotations

import errno
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ClusterError, ConfigError, DataError, MonolithError, SnapshotCorrupt
from monolith.stream.events import END_OF_TIME, Action, Impression
from monolith.stream.native_core import JoinBatch, NativeJoiner
from monolith.stream.parsing import DeadLetter, EventParser, InputRecord, RecordPlace
from monolith.stream.runtime.ports import JoinInput, JoinSink, Lot
from monolith.stream.runtime.state_folder import Snapshot, StateFolder
from monolith.stream.settings import MOST_RECORD_BYTES, JoinSettings
from monolith.stream.watermark import WatermarkTracker

__all__ = ["GroupOptions", "GroupStatus", "JoinGroup"]

logger = logging.getLogger(__name__)

_PART_BITS = 20  # a commit has at most 2**20 output batches
_BATCH_BYTES = 8 << 20
_CLOCK_JUMP_MS = 60_000
_RETRY_S = 0.5
_ATTEMPTS_PER_LINE = 120
"""Attempts at a commit of which one writes a line to the log: a line per minute."""
_REPEAT_WAIT_S = 1.0
_REPEAT_WAITS = 30
"""Most waits for one lot of a replay: brokers may take seconds to answer after a restart."""
_SPILL_SHARE = 0.8
_HELD_SHARE = 0.1
_PASSED_ON = (OSError, MemoryError, MonolithError)
"""Errors of the machine or of the settings, which no record causes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupOptions:
    """Bounds and intervals of a group. They change no row, except where a bound closes windows early.

    Args:
        commit_ms: Longest time between a record and its commit.
        commit_bytes: Size of waiting rows that forces a commit.
        snapshot_s: Time between snapshots.
        snapshot_events: Number of records between snapshots.
        memory_bytes: State in memory; more goes to disk.
        disk_bytes: State on disk; beyond it the oldest windows close early.
        lot_records: Most records per read.
        idle_advance: Whether the watermark follows the clock while all inputs are silent.
    """

    commit_ms: int = 200
    commit_bytes: int = 8 << 20
    snapshot_s: float = 60.0
    snapshot_events: int = 1_000_000
    memory_bytes: int = 1 << 30
    disk_bytes: int = 16 << 30
    lot_records: int = 4_096
    idle_advance: bool = True

    def __post_init__(self) -> None:
        for name, least in (
            ("commit_ms", 0),
            ("commit_bytes", 1),
            ("snapshot_s", 0),
            ("snapshot_events", 1),
            ("memory_bytes", 1 << 16),
            ("disk_bytes", 0),
            ("lot_records", 1),
        ):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)!r}, expected at least {least}")


@dataclass(slots=True)
class GroupStatus:
    """Counts of a group since its start, and its state now."""

    records: int = 0
    rows: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)
    commits: int = 0
    commit_failures: int = 0
    commit_seconds: float = 0.0
    snapshots: int = 0
    clock_jumps: Counter[str] = field(default_factory=Counter)
    counters: Mapping[str, int] = field(default_factory=dict)
    open_impressions: int = 0
    held_actions: int = 0
    memory_bytes: int = 0
    spilled_bytes: int = 0
    watermark_ms: int | None = None
    idle_inputs: int = 0


class JoinGroup:
    """The join of one partition group. Call ``start``, then ``step`` until the end, then ``close``.

    Args:
        settings: The rules. A change takes effect at the next start, for all open windows.
        inputs: One partition of each input topic.
        rows: Receives the examples.
        dead: Receives the dead letters.
        folder: State of the group.
        record: Message kind of the input records.
        options: Bounds and intervals.
        clock: Time source.
        on_point: Called with the name of each step of the commit protocol, for tests that kill the process.
    """

    def __init__(
        self,
        settings: JoinSettings,
        inputs: Sequence[JoinInput],
        rows: JoinSink,
        dead: JoinSink,
        folder: StateFolder,
        *,
        record: InputRecord = "example",
        options: GroupOptions | None = None,
        clock: Clock | None = None,
        on_point: Callable[[str], None] | None = None,
    ) -> None:
        self._settings = settings
        self._inputs = inputs
        self._rows = rows
        self._dead = dead
        self._folder = folder
        self._record = record
        self._options = options or GroupOptions()
        self._clock = clock or SystemClock()
        self._on_point = on_point or (lambda _: None)
        self.status = GroupStatus()
        self.is_stopping = False
        """Set by another thread: a commit that waits for disk space raises instead."""
        self._use(settings)
        self._commit = 0
        self._last_rows = 0
        self._last_dead = 0
        self._steps: list[list[Any]] = []
        self._dead_letters: list[DeadLetter] = []
        self._commit_due_s: float | None = None
        self._snapshot_due_s = 0.0
        self._snapshot_events = 0
        self._is_finished = False

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take ownership, restore the state, and append output that a crash left out.

        Raises:
            SnapshotCorrupt: Every snapshot is damaged, or the outputs have commits that the journal lacks.
            DataError: An input does not hold the records after the snapshot any more.
        """
        self._last_rows = self._rows.take_over()
        self._last_dead = self._dead.take_over()
        written = max(self._last_rows, self._last_dead) >> _PART_BITS
        snapshot, commits = self._folder.recover(self._restore)
        self._folder.clear_spill()
        self._on_point("restored")
        if snapshot is None:
            if written:
                # Rows below this number count as written, and would be left out.
                logger.warning(
                    "join starts without state, outputs have rows path=%s commit=%d", self._folder.path, written
                )
                self._commit = written
            self._save_snapshot(is_first=True)
        else:
            self._repeat(commits)
            if written > self._commit:
                raise SnapshotCorrupt(
                    f"state folder '{self._folder.path}' ends at commit {self._commit} and its outputs at commit "
                    f"{written}, expected the state to be as new as the outputs: the journal is damaged or the folder "
                    "is an old copy; restore the folder, or start with an empty --state folder, which repeats rows"
                )
            logger.info("join restored snapshot=%d commit=%d rows=%d", snapshot.commit, self._commit, self.status.rows)
            if self._core.settings != self._settings:
                self._change_settings()
            elif self._folder.has_taken_over:
                # The stopped process may wake up and remove the snapshot that was restored.
                self._save_snapshot(is_first=True)
        self._start_journal()
        self._schedule_snapshot()

    def close(self) -> None:
        """Commit, write a snapshot, and release files. May be called twice."""
        try:
            if self._steps or self._dead_letters or self._core.pending_rows:
                self._write_commit()
            if self._snapshot_events:
                self._save_snapshot()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Release files without a commit, after an error. A restart repeats the lost work."""
        with ExitStack() as left:  # all of them, also after one that raises
            left.callback(self._folder.close)
            for sink in (self._dead, self._rows):
                left.callback(sink.close)
            for port in self._inputs:
                left.callback(port.close)

    # --- work ---------------------------------------------------------------------------------------------------------

    def step(self, wait_s: float) -> bool:
        """Read records, join them, and commit if due.

        Args:
            wait_s: Longest wait for a record.

        Returns:
            False if no record arrived.

        Raises:
            DataError: An input lost records, has records after ``finish``, or the journal failed.
            ClusterError: Another process took over the group.
        """
        lot, number = self._read(min(wait_s, self._time_to_commit()))
        if lot is not None:
            self._check_open(number, lot)
            if self._commit_due_s is None:
                self._commit_due_s = self._clock.monotonic_s() + self._options.commit_ms / 1000
            self._note_clock(number, lot)
            self._steps.append(["lot", number, int(lot.offsets[0]), len(lot.batch), self._fixed_ingest(lot)])
            self._join(number, lot)
        self._advance(self._tracker.advance(self._clock_ms()))
        self._keep_bounds()
        if self._is_commit_due():
            self._write_commit()
            if self._clock.monotonic_s() >= self._snapshot_due_s or (
                self._snapshot_events >= self._options.snapshot_events
            ):
                self._save_snapshot()
        self._update_status()
        return lot is not None

    def finish(self) -> None:
        """Close every window at the end of a finite input, and commit."""
        if not self._is_finished:
            self._is_finished = True
            self._advance(self._tracker.finish())
            self._write_commit()
            self._update_status()

    def lost_records(self) -> dict[str, int]:
        """Return the records that retention removed before the group read them, or that lay in damage, by topic."""
        return {each.topic: each.lost_records for each in self._inputs}

    def is_at_end(self) -> bool:
        """Return True if no input has a record left."""
        return all(each.is_at_end() for each in self._inputs)

    def _read(self, wait_s: float) -> tuple[Lot | None, int]:
        """Return the next lot, first of the input whose event time is behind: it holds the watermark."""
        times = [self._tracker.largest_time(number) for number in range(len(self._inputs))]
        order = sorted(range(len(self._inputs)), key=lambda number: (times[number] is not None, times[number] or 0))
        for number in order:
            if (lot := self._inputs[number].read(self._options.lot_records, 0.0)) is not None:
                return lot, number
            if self._inputs[number].has_reached_end():
                self._tracker.reach_end(number)
        share_s = wait_s / len(order)
        for number in order:
            if (lot := self._inputs[number].read(self._options.lot_records, share_s)) is not None:
                return lot, number
        return None, -1

    def _check_open(self, number: int, lot: Lot) -> None:
        """Refuse records after ``finish``, of this process or an earlier one: each would be dropped as late."""
        if self._core.watermark_ms == END_OF_TIME:
            port = self._inputs[number]
            raise DataError(
                f"input {port.topic}[{port.partition}] has records from offset {int(lot.offsets[0])} on, expected none "
                "after --until-end has closed every window; join it again with an empty --state folder and another "
                "--output"
            )

    def _join(self, number: int, lot: Lot) -> None:
        batch, core = lot.batch, self._core
        first = self._join_batch(number, lot, 0)
        while first < len(batch):
            self._join_slowly(number, lot, first)
            first = self._join_batch(number, lot, first + 1)
        largest_ms = core.take_largest_time()
        last_ingest_ms = int(batch.ingest_ms[-1]) if len(batch) else 0
        if largest_ms is not None:
            self._tracker.observe(number, largest_ms, last_ingest_ms, clock_ms=self._clock_ms())
        self._snapshot_events += len(batch)
        self.status.records += len(batch)

    def _join_batch(self, number: int, lot: Lot, first: int) -> int:
        """Join records up to one that the native reader refuses; return its index, or the size of the lot."""
        try:
            return self._core.join(lot.batch, first)
        except _PASSED_ON:
            raise
        except Exception as error:
            # Records of the batch that were joined before the error are duplicates now, which change no row.
            logger.error("core failed, joining records one by one offset=%d error=%s", int(lot.offsets[first]), error)
            for index in range(first, len(lot.batch)):
                self._join_slowly(number, lot, index)
            return len(lot.batch)

    def _join_slowly(self, number: int, lot: Lot, index: int) -> None:
        """Join a record that the native reader refused: JSON, a rare form, or a dead letter.

        A record that makes the core raise twice becomes a dead letter. A restart repeats the same decision.
        """
        batch, port = lot.batch, self._inputs[number]
        ingest_ms = int(batch.ingest_ms[index])
        place = RecordPlace(port.topic, port.partition, int(lot.offsets[index]))
        try:
            events = self._parser.parse(
                batch.values[index],
                place,
                key=batch.keys[index] if batch.keys is not None else b"",
                time_ms=int(batch.times_ms[index]) if batch.times_ms is not None else None,
                ingest_time_ms=ingest_ms,
            )
            if isinstance(events, DeadLetter):
                self._dead_letters.append(events)
                return
            for event in events:
                self._add(event, ingest_ms if not isinstance(event, Impression) else 0)
        except _PASSED_ON:
            raise
        except Exception as error:
            logger.error("record refused by the core place=%s error=%r", place, error)
            self._dead_letters.append(
                DeadLetter(place=place, reason="core_error", detail=repr(error), value=bytes(batch.values[index]))
            )

    def _add(self, event: Impression | Action, ingest_ms: int) -> None:
        try:
            self._core.add(event, ingest_ms)
        except _PASSED_ON:
            raise
        except Exception:  # one retry with this event alone
            self._core.add(event, ingest_ms)

    def _advance(self, watermark_ms: int | None) -> None:
        if watermark_ms is None or watermark_ms == self._core.watermark_ms:
            return
        if self._steps and self._steps[-1][0] == "w":
            self._steps[-1][1] = watermark_ms  # the rows of two steps equal the rows of the second
        else:
            self._steps.append(["w", watermark_ms])
        self._core.advance(watermark_ms)

    # --- bounds -------------------------------------------------------------------------------------------------------

    def _keep_bounds(self) -> None:
        """Spill state above the memory budget; beyond the disk budget, close the oldest windows early."""
        options, core = self._options, self._core
        if core.held_bytes > _HELD_SHARE * options.memory_bytes:
            self._drop_held(max(1, core.held_actions // 10))
        is_full = False
        if core.memory_bytes > options.memory_bytes:
            try:
                core.spill(int(_SPILL_SHARE * options.memory_bytes))
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                    raise
                is_full = True
                logger.warning("spill failed path=%s error=%s", self._folder.spill_folder, error)
        while core.open_impressions and (
            is_full or core.memory_bytes > options.memory_bytes or core.spilled_bytes > options.disk_bytes
        ):
            is_full = False
            self._close_early(max(1, core.open_impressions // 16))

    def _close_early(self, count: int) -> None:
        self._steps.append(["early", self._core.close_oldest(count)])
        logger.warning("windows closed early count=%d memory_bytes=%d", count, self._core.memory_bytes)

    def _drop_held(self, count: int) -> None:
        self._steps.append(["held", self._core.drop_oldest_held(count)])
        logger.warning("waiting actions dropped identities=%d", count)

    # --- commits ------------------------------------------------------------------------------------------------------

    def _time_to_commit(self) -> float:
        if self._commit_due_s is None:
            return self._options.commit_ms / 1000
        return max(0.0, self._commit_due_s - self._clock.monotonic_s())

    def _is_commit_due(self) -> bool:
        core = self._core
        if self._commit_due_s is None and (core.pending_rows or self._dead_letters):
            self._commit_due_s = self._clock.monotonic_s() + self._options.commit_ms / 1000
        if self._commit_due_s is None:
            return False
        return core.pending_bytes >= self._options.commit_bytes or self._clock.monotonic_s() >= self._commit_due_s

    def _write_commit(self) -> None:
        started_s = self._clock.monotonic_s()
        record = {
            "n": self._commit + 1,
            "time": int(self._clock.now_s() * 1000),
            "steps": self._steps,
            "positions": [each.position() for each in self._inputs],
        }
        self._on_point("before journal")
        self._retry(lambda: self._folder.append(record))
        self._on_point("after journal")
        self._write_outputs(record)
        self.status.commits += 1
        self.status.commit_seconds += self._clock.monotonic_s() - started_s
        self._on_point("after outputs")

    def _write_outputs(self, record: Mapping[str, Any]) -> None:
        """Append the waiting rows and dead letters of a commit where the outputs lack them."""
        self._commit = record["n"]
        sequence = self._commit << _PART_BITS
        while self._core.pending_rows:
            keys, values, times = self._core.take_examples(record["time"], _BATCH_BYTES)
            if sequence > self._last_rows:
                self._append(self._rows, sequence, keys, values, times)
                self._last_rows = sequence
                self.status.rows += len(keys)
            self._on_point("after rows")
            sequence += 1
        sequence = self._commit << _PART_BITS
        for letters in _split(self._dead_letters):
            if sequence > self._last_dead:
                keys = [letter.key for letter in letters]
                values = [letter.value[:MOST_RECORD_BYTES] for letter in letters]
                self._append(self._dead, sequence, keys, values, [record["time"]] * len(letters))
                self._last_dead = sequence
                for letter in letters:
                    self.status.dead_letters[letter.reason] += 1
                    logger.debug("dead letter place=%s reason=%s detail=%s", letter.place, letter.reason, letter.detail)
            sequence += 1
        self._steps, self._dead_letters, self._commit_due_s = [], [], None

    def _append(
        self, sink: JoinSink, sequence: int, keys: Sequence[bytes], values: Sequence[bytes], times: Sequence[int]
    ) -> None:
        self._retry(lambda: sink.append(sequence, keys, values, times))

    def _retry(self, write: Callable[[], None]) -> None:
        """Call ``write`` until the disk has room. Input waits meanwhile, and nothing is lost."""
        for attempt in itertools.count():
            try:
                return write()
            except OSError as error:
                self.status.commit_failures += 1
                if attempt % _ATTEMPTS_PER_LINE == 0:  # the log may lie on the same disk
                    logger.error("commit waits commit=%d error=%s", self._commit + 1, error)
                self._on_point("commit waits")
                if self.is_stopping:
                    raise
                self._clock.sleep_s(_RETRY_S)

    # --- snapshots ----------------------------------------------------------------------------------------------------

    def _save_snapshot(self, *, is_first: bool = False) -> None:
        positions = [each.position() for each in self._inputs]
        meta = {
            "commit": self._commit,
            "positions": positions,
            "tracker": self._tracker.save(),
            "settings": self._core.settings.to_json(),
            "inputs": [each.topic for each in self._inputs],
        }
        self._on_point("before snapshot")
        try:
            self._folder.save(self._commit, meta, self._core.save)
        except OSError as error:
            if is_first:
                raise
            logger.error("snapshot failed commit=%d error=%s", self._commit, error)
            self._schedule_snapshot()
            return
        self._on_point("after snapshot")
        self.status.snapshots += 1
        self._schedule_snapshot()
        if not is_first:
            try:
                self._start_journal()
            except OSError as error:
                logger.error("journal continued, no new file commit=%d error=%s", self._commit, error)
            self._folder.trim()
        for port, position in zip(self._inputs, positions, strict=True):
            port.committed(position)

    def _start_journal(self) -> None:
        self._folder.start_journal(self._commit + 1, {"settings": self._core.settings.digest()})

    def _schedule_snapshot(self) -> None:
        self._snapshot_due_s = self._clock.monotonic_s() + self._options.snapshot_s
        self._snapshot_events = 0

    def _restore(self, snapshot: Snapshot) -> None:
        meta = snapshot.meta
        topics = [each.topic for each in self._inputs]
        if meta["inputs"] != topics:
            raise ConfigError(
                f"inputs are {topics}, expected {meta['inputs']} as in '{snapshot.path}'; use another --state folder"
            )
        self._use(JoinSettings.from_json(meta["settings"]))
        self._core.restore(snapshot.core_path, self._options.memory_bytes)
        self._tracker.restore(meta["tracker"])
        self._commit = snapshot.commit
        for port, position in zip(self._inputs, meta["positions"], strict=True):
            port.resume(position)

    def _use(self, settings: JoinSettings) -> None:
        self._core = NativeJoiner(settings, self._folder.spill_folder)
        self._parser = EventParser(settings, self._record)
        self._tracker = WatermarkTracker(
            settings, range(len(self._inputs)), clock_ms=self._clock_ms(), idle_advance=self._options.idle_advance
        )

    def _change_settings(self) -> None:
        """Continue the restored state under new settings, from a snapshot that separates both."""
        path = self._folder.path / "settings-change.bin"
        tracker = self._tracker.save()
        self._core.save(path)
        self._use(self._settings)
        self._core.restore(path, self._options.memory_bytes)
        self._tracker.restore(tracker)
        path.unlink()
        logger.info("join settings changed digest=%s", self._settings.digest())
        self._save_snapshot(is_first=True)

    # --- replay -------------------------------------------------------------------------------------------------------

    def _repeat(self, commits: Sequence[Mapping[str, Any]]) -> None:
        """Run the commits after the snapshot again, and append their output where it is absent."""
        for record in commits:
            for kind, *arguments in record["steps"]:
                if kind == "lot":
                    self._repeat_lot(*arguments)
                elif kind == "w":
                    self._tracker.raise_to(arguments[0])
                    self._core.advance(arguments[0])
                elif kind == "early":
                    self._core.close_oldest(arguments[0])
                else:
                    self._core.drop_oldest_held(arguments[0])
                if self._core.memory_bytes > self._options.memory_bytes:
                    self._core.spill(int(_SPILL_SHARE * self._options.memory_bytes))
            self._check_repeated(record)
            self._write_outputs(record)
            self._on_point("repeated")

    def _repeat_lot(self, number: int, begin: int, count: int, ingest_ms: int | None) -> None:
        self._inputs[number].skip_to(begin)
        is_first = True
        while count:
            lot = self._read_again(number, count)
            if is_first and int(lot.offsets[0]) != begin:
                port = self._inputs[number]
                raise DataError(
                    f"input {port.topic}[{port.partition}] begins at offset {int(lot.offsets[0])}, expected {begin} to "
                    "repeat the commits after the snapshot: retention removed the records between; raise the "
                    "retention, and start with an empty --state folder, which repeats rows"
                )
            is_first = False
            if ingest_ms is not None:
                batch = lot.batch
                ingest = np.full(len(batch), ingest_ms, np.int64)
                lot = Lot(JoinBatch(batch.values, ingest, batch.keys, batch.times_ms), lot.offsets)
            count -= len(lot.batch)
            self._join(number, lot)

    def _check_repeated(self, record: Mapping[str, Any]) -> None:
        """Refuse an input whose records of a commit are others now: its tail was cut and written again."""
        for number in {arguments[0] for kind, *arguments in record["steps"] if kind == "lot"}:
            port, wanted = self._inputs[number], record["positions"][number]
            if (epoch := port.position().get("epoch")) != wanted.get("epoch"):
                raise DataError(
                    f"input {port.topic}[{port.partition}] has epoch {epoch} before offset {wanted['offset']}, "
                    f"expected {wanted['epoch']} to repeat the commits after the snapshot: a power loss took joined "
                    "records, and others have their offsets; start with an empty --state folder, which repeats rows"
                )

    def _read_again(self, number: int, count: int) -> Lot:
        """Return the next records of a replay. An input may be slow, which does not mean that it ends."""
        port = self._inputs[number]
        for _ in range(_REPEAT_WAITS):
            if (lot := port.read(count, _REPEAT_WAIT_S)) is not None:
                return lot
            if port.is_at_end():
                raise DataError(
                    f"input {port.topic}[{port.partition}] ends {count} records before the last commit; "
                    "restore the topic, or start with an empty --state folder"
                )
        raise ClusterError(
            f"input {port.topic}[{port.partition}] gave no record within {_REPEAT_WAITS * _REPEAT_WAIT_S:g} s, "
            f"expected {count} more to repeat the commits after the snapshot; check the brokers and restart",
            retryable=True,
        )

    # --- observation --------------------------------------------------------------------------------------------------

    def _fixed_ingest(self, lot: Lot) -> int | None:
        """Return the ingest time to write into the journal, for inputs that take it from a clock."""
        return int(lot.batch.ingest_ms[-1]) if lot.uses_clock and len(lot.batch) else None

    def _note_clock(self, number: int, lot: Lot) -> None:
        ahead_ms = int(lot.batch.ingest_ms[-1]) - int(self._clock.now_s() * 1000)
        if ahead_ms > _CLOCK_JUMP_MS:
            self.status.clock_jumps["forward"] += 1
            logger.warning("append time ahead of the clock topic=%s ms=%d", self._inputs[number].topic, ahead_ms)

    def _clock_ms(self) -> int:
        return int(self._clock.monotonic_s() * 1000)

    def _update_status(self) -> None:
        core, status = self._core, self.status
        status.counters = core.counters
        status.open_impressions = core.open_impressions
        status.held_actions = core.held_actions
        status.memory_bytes = core.memory_bytes
        status.spilled_bytes = core.spilled_bytes
        status.watermark_ms = core.watermark_ms
        status.idle_inputs = self._tracker.count_idle(self._clock_ms())


def _split(letters: Sequence[DeadLetter]) -> list[list[DeadLetter]]:
    """Return dead letters in batches that a sink accepts."""
    batches: list[list[DeadLetter]] = []
    size = _BATCH_BYTES
    for letter in letters:
        if size >= _BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(letter)
        size += len(letter.value) + 256
    return batches
