"""Appending to a delta log: what changed since the last call becomes the next segment.

Who calls, how often, and what keeps others from changing the tables meanwhile, comes in from outside.
"""

from __future__ import annotations

import contextlib
import fcntl
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
from monolith.core.durable_files import sync_folder
from monolith.core.errors import ConfigError, DeltaLogBroken, SnapshotCorrupt

if TYPE_CHECKING:
    from monolith.embedding import MultiTable

__all__ = ["DeltaWriter", "remove_log", "set_aside_log"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_FLAVOURS = {"durable": _native.DeltaFlavour.durable, "serving": _native.DeltaFlavour.serving}


class DeltaWriter:
    """The one writer of a shard's log. It takes the tables' notes of touched ids, so tables have one writer.

    A segment that cannot be written (a full disk) loses nothing: its changes come with the next one. All methods may
    be called from several threads; they take turns.
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
        """Open a log, or begin one; changes of the tables count from here on.

        Args:
            folder: The log's own folder; made when missing.
            shard: (index, count) of the ids that the tables hold.
            tables: The tables; those of a log stay the same.
            clock: What segments are stamped with.
            flavour: "durable" to train on from the log, "serving" to serve from it.
            lock: Keeps others from changing the tables while it is entered; entered again for every segment, and only
                while changed rows are copied. None: each table is taken at an instant of its own.
            marks: Gives the bytes to keep with a segment, called under the lock; see ``Replayed.marks``.
            holds: The sequence that the tables are at: what ``DeltaReader.replay`` returned. When it is not the log's
                newest, the next segment holds all rows.
            log: The number of a log that is begun here, 64 bits; None draws one. A log that is there keeps its own.

        Raises:
            ConfigError: Another process writes here, or the log is of another shard or flavour.
            DeltaLogBroken: The newest segment cannot be read.
        """
        index, count = shard
        if not 0 <= index < count:
            raise ConfigError(f"shard is {shard}; give (index, count) with index from 0 to count - 1")
        if flavour not in _FLAVOURS:
            raise ConfigError(f"flavour is {flavour!r}; give 'durable' or 'serving'")
        self.folder = Path(folder)
        self._clock = clock
        self._lock = lock if lock is not None else contextlib.nullcontext()
        self._marks = marks or (lambda: b"")
        self._turn = threading.Lock()
        self.folder.mkdir(parents=True, exist_ok=True)
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
            self._collector = _native.DeltaCollector(natives, _FLAVOURS[flavour], index, count, is_known)
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
                f"{error}; it is the newest segment, the last good one may be {good}: move it away to go on from there",
                last_good=good,
            ) from error
        if last.shard != shard or last.flavour != flavour:
            raise ConfigError(
                f"'{self.folder}' is the {last.flavour} log of shard {last.shard[0]} of {last.shard[1]}, not the "
                f"{flavour} log of shard {shard[0]} of {shard[1]}; give each log a folder of its own"
            )
        return last

    @property
    def log(self) -> int:
        """The log's own number, the same in all its segments."""
        return self._log

    @property
    def sequence(self) -> int:
        """The newest segment's number; 0 before the first."""
        return self._sequence

    def write(self) -> int | None:
        """Write what changed since the last call; return the new segment's number, or None when nothing did.

        Raises:
            OSError: The segment could not be written; its changes come with the next one.
        """
        return self._write(lambda: None)[0]

    def cut(self, take: Callable[[], _T]) -> tuple[int, _T]:
        """Call ``take`` at the instant of a segment: what it returns and the sequence are the same state.

        For checkpoints: ``sequence, cut = writer.cut(tables.cut)``. The sequence is the newest one when nothing
        changed.

        Raises:
            OSError: As ``write``.
        """
        _, taken = self._write(take)
        return self._sequence, taken

    def _write(self, take: Callable[[], _T]) -> tuple[int | None, _T]:
        with self._turn:
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
        sync_folder(self.folder)

    def compact(self, up_to_sequence: int) -> int:
        """Remove the segments before one that a snapshot covers, and return how many.

        The segment itself stays, and so does the newest one: they say where the log is, and hold its marks.
        """
        with self._turn:
            numbers = segment_numbers(self.folder)
            covered = [number for number in numbers[:-1] if number < up_to_sequence]
            for number in covered:  # oldest first: what a crash leaves has no gap
                segment_path(self.folder, number).unlink(missing_ok=True)
                _native.failpoint("delta.compacting")
            if covered:
                sync_folder(self.folder)
                logger.info("delta segments removed folder=%s count=%d", self.folder, len(covered))
            return len(covered)

    def close(self) -> None:
        """Let another writer in. What was not written stays unwritten."""
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
    """Remove all segments of a log that nobody writes to; return how many.

    Raises:
        ConfigError: A process writes to it.
    """
    folder = Path(folder)
    numbers = segment_numbers(folder)
    if numbers:
        claim = _claim(folder)
        try:
            for number in reversed(numbers):  # newest first: what a crash leaves is an earlier state of the log
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
    for older in sorted(folder.glob("foreign-*"))[:-keep]:
        remove_log(older)
        older.rmdir()
    return aside


def _claim(folder: Path) -> int:
    """Keep other writers out until the handle is closed, or this process is gone."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ConfigError(
            f"another process writes to the delta log '{folder}'; stop it, or give this one another folder"
        ) from None
    return handle
