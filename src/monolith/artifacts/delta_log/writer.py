"""Append to a delta log: changes since the last call become the next segment.

The caller decides when to write, and passes the lock that keeps tables unchanged meanwhile. Thread safe.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import secrets
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from monolith import _native
from monolith.artifacts.delta_log.segment import (
    Flavour,
    Segment,
    native_tables,
    read_segment,
    segment_numbers,
    segment_path,
)
from monolith.core.clock import Clock
from monolith.core.durable_files import make_folder, sync_folder, write_synced
from monolith.core.errors import ConfigError, DeltaLogBroken, SnapshotCorrupt

if TYPE_CHECKING:
    from monolith.embedding import MultiTable

__all__ = ["DeltaWriter", "remove_log", "set_aside_log"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_FLAVOURS = {"durable": _native.DeltaFlavour.durable, "serving": _native.DeltaFlavour.serving}


class DeltaWriter:
    """The only writer of a shard's log. It consumes the tables' lists of touched ids, so tables have one writer.

    A segment that cannot be written (full disk) loses nothing: the next segment has its changes. Thread safe.
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        shard: tuple[int, int],
        tables: MultiTable,
        *,
        clock: Clock,
        flavour: Flavour = "durable",
        lock: AbstractContextManager[Any] | None = None,
        marks: Callable[[], bytes] | None = None,
        holds: int = 0,
        log: int | None = None,
    ) -> None:
        """Open or create a log, and start to collect changes of the tables.

        Args:
            folder: Folder of the log; created if missing.
            shard: (index, count) of the ids in the tables.
            tables: The tables; a log always belongs to the same tables.
            clock: Clock of the segments' timestamps.
            flavour: "durable" to resume training from the log, "serving" to serve from it.
            lock: While it is entered, tables do not change. It is entered for every segment, only while changed rows
                are copied. None: each table is copied at a different moment.
            marks: Returns bytes to store with a segment, called under the lock; see ``Replayed.marks``.
            holds: Present sequence of the tables, as returned by ``DeltaReader.replay``. If it is not the newest
                segment of the log, the next segment holds all rows.
            log: 64-bit number of a new log; None draws one. An existing log keeps its number.

        Raises:
            ConfigError: Another process writes to the folder, or the log has another shard or flavour.
            DeltaLogBroken: The newest segment is unreadable.
        """
        index, count = shard
        if not 0 <= index < count:
            raise ConfigError(f"shard is {shard}, expected (index, count) with index from 0 to count - 1")
        if flavour not in _FLAVOURS:
            raise ConfigError(f"flavour is {flavour!r}, expected 'durable' or 'serving'")
        self.folder = Path(folder)
        self._clock = clock
        self._lock = lock if lock is not None else contextlib.nullcontext()
        self._marks = marks or (lambda: b"")
        self._turn = threading.Lock()
        self._unsynced: Path | None = None
        make_folder(self.folder)
        self._claim: int | None = _claim(self.folder)
        try:
            last = self._newest(shard, flavour)
            natives = native_tables(tables)
            is_known = (
                last is not None
                and holds == last.sequence
                and last.tables_hash == _native.delta_tables_hash(natives, _FLAVOURS[flavour])
            )
            self._log = last.log if last else secrets.randbits(64) if log is None else log
            self._wall_time_us = round(last.wall_time_s * 1e6) if last else 0
            self._previous = last.sequence if last else 0
            self._written_marks = _native.read_delta_marks(str(last.path)) if last and is_known else None
            self._sequence = max(self._previous, holds)
            self._collect = functools.partial(_native.DeltaCollector, natives, _FLAVOURS[flavour], index, count)
            self._collector = self._collect(is_known)
        except BaseException:
            self.close()
            raise

    def _newest(self, shard: tuple[int, int], flavour: Flavour) -> Segment | None:
        for leftover in self.folder.glob("seg-*.delta.tmp"):
            leftover.unlink()
        numbers = segment_numbers(self.folder)
        if not numbers:
            return None
        path = segment_path(self.folder, numbers[-1])
        try:
            last = read_segment(path)
        except SnapshotCorrupt as error:
            good = numbers[-2] if len(numbers) > 1 else 0
            raise DeltaLogBroken(
                f"{error}; it is the newest segment; move it away to resume from segment {good}",
                last_good=good,
            ) from error
        if last.shard != shard or last.flavour != flavour:
            raise ConfigError(
                f"'{self.folder}' is the {last.flavour} log of shard {last.shard[0]} of {last.shard[1]}, expected the "
                f"{flavour} log of shard {shard[0]} of {shard[1]}; give each log its own folder"
            )
        return last

    @property
    def log(self) -> int:
        """Number of the log, equal in all its segments."""
        return self._log

    @property
    def sequence(self) -> int:
        """Number of the newest segment; 0 before the first."""
        return self._sequence

    def write(self) -> int | None:
        """Write the changes since the last call; return the number of the new segment, None without changes.

        Raises:
            OSError: The segment could not be written. The next segment has its changes.
        """
        return self._write(lambda: None)[0]

    def begin_again(self) -> None:
        """Make the next segment hold all rows. Readers then need no segment before it."""
        with self._turn:
            self._collector = self._collect(False)

    def cut(self, take: Callable[[], _T]) -> tuple[int, _T]:
        """Write the changes, and call ``take`` at the same moment; return the sequence and the result of ``take``.

        For checkpoints: ``sequence, cut = writer.cut(tables.cut)``. Without changes the sequence is the newest one.

        Raises:
            OSError: As in ``write``.
        """
        _, taken = self._write(take)
        return self._sequence, taken

    def _write(self, take: Callable[[], _T]) -> tuple[int | None, _T]:
        with self._turn:
            self._sync_again()
            try:
                with self._lock:
                    marks = self._marks()
                    has_changed = self._collector.collect()
                    taken = take()
                _native.failpoint("delta.collected")
                if not has_changed and marks == self._written_marks:
                    return None, taken
                self._append(marks)
                return self._sequence, taken
            finally:
                self._collector.abandon()  # whatever failed: a cut that stays would block clear() and restores

    def _append(self, marks: bytes) -> None:
        sequence = self._sequence + 1
        wall_time_us = max(self._wall_time_us, round(self._clock.now_s() * 1e6))
        path = segment_path(self.folder, sequence)
        self._collector.write(str(path), self._log, sequence, self._previous, wall_time_us, marks)
        self._sequence = self._previous = sequence
        self._wall_time_us, self._written_marks = wall_time_us, marks
        self._unsynced = path
        sync_folder(self.folder)
        self._unsynced = None

    def _sync_again(self) -> None:
        """Make a segment durable whose folder could not be synced.

        The kernel reports a failed sync once and then forgets it, so the file is written and renamed again.
        """
        path = self._unsynced
        if path is None:
            return
        temporary = path.with_name(f"{path.name}.tmp")
        write_synced(temporary, path.read_bytes())
        temporary.replace(path)
        sync_folder(self.folder)
        self._unsynced = None

    def compact(self, up_to_sequence: int) -> int:
        """Remove the segments before ``up_to_sequence``, which a snapshot covers; return their number.

        That segment and the newest one stay: they hold the position and the marks of the log.
        """
        with self._turn:
            numbers = segment_numbers(self.folder)
            covered = [number for number in numbers[:-1] if number < up_to_sequence]
            for number in covered:  # oldest first: a crash leaves no gap
                segment_path(self.folder, number).unlink(missing_ok=True)
                _native.failpoint("delta.compacting")
            if covered:
                sync_folder(self.folder)
                logger.info("delta segments removed folder=%s count=%d", self.folder, len(covered))
            return len(covered)

    def close(self) -> None:
        """Release the log for another writer. Unwritten changes stay unwritten."""
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def remove_log(folder: str | PathLike[str]) -> int:
    """Remove all segments of a log without a writer; return their number.

    Raises:
        ConfigError: A process writes to the log.
    """
    folder = Path(folder)
    numbers = segment_numbers(folder)
    if numbers:
        claim = _claim(folder)
        try:
            for number in reversed(numbers):  # newest first: a crash leaves an earlier state of the log
                segment_path(folder, number).unlink(missing_ok=True)
            sync_folder(folder)
        finally:
            os.close(claim)
    return len(numbers)


def set_aside_log(folder: str | PathLike[str], time_s: int, keep: int = 2) -> Path | None:
    """Move all segments of a log to a subfolder ``foreign-<time>``; return it, or None without segments.

    Args:
        folder: The log; no process may write to it.
        time_s: Unix seconds, for the name of the subfolder.
        keep: Number of such subfolders to keep; older ones are removed.

    Raises:
        ConfigError: A process writes to the log.
    """
    folder = Path(folder)
    numbers = segment_numbers(folder)
    if not numbers:
        return None
    claim = _claim(folder)
    try:
        aside = folder / f"foreign-{time_s}-{secrets.token_hex(2)}"
        aside.mkdir()
        for number in reversed(numbers):  # newest first: a crash leaves an earlier state of the log
            segment_path(folder, number).rename(segment_path(aside, number))
        sync_folder(aside)
        sync_folder(folder)
    finally:
        os.close(claim)
    others = sorted(other for other in folder.glob("foreign-*") if other != aside)  # the clock may have been set back
    for older in others[: len(others) + 1 - keep]:
        remove_log(older)
        older.rmdir()
    return aside


def _claim(folder: Path) -> int:
    """Lock the folder until the handle is closed or this process ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ConfigError(
            f"delta log '{folder}' is in use by another process, expected one writer; stop it, or give another folder"
        ) from None
    return handle
