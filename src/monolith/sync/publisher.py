"""Publish the rows and dense weights of one moment, and name them together as a cut.

``Publisher`` writes the dense weights and the cut. A ``RowLogs`` writes the rows: ``LocalRowLog`` for tables in this
process, ``ServerDeltaLogs`` for parameter servers. The caller decides when to publish, and passes the lock that keeps
training from changing rows and weights meanwhile.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from monolith.artifacts.delta_log import Cut, DeltaWriter, Flavour, LogPosition, publish, read_cut, shard_folder
from monolith.artifacts.delta_log.event_ages import MOST_CUTS, CutAges
from monolith.artifacts.delta_log.segment import segment_path
from monolith.core.clock import Clock
from monolith.core.durable_files import make_folder
from monolith.core.errors import ConfigError, ManifestInvalid, VersionConflict
from monolith.embedding import MultiTable
from monolith.sync.base_snapshot import BaseSnapshot, write_base
from monolith.sync.dense_versions import DenseWriter
from monolith.sync.event_ages import EventAges, TrainedRows

__all__ = ["LocalRowLog", "Publisher", "LogPositions", "RowLogs", "Weights"]

logger = logging.getLogger(__name__)

MAX_SEGMENTS = 1000
"""Segments of a local log before it is compacted without a checkpoint."""
LOCK = "publisher.lock"
"""File in the published folder that its publisher locks."""

Weights: TypeAlias = Mapping[str, NDArray[Any]]
"""Dense weights by their names in a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPositions:
    """Positions of the logs of all shards."""

    positions: Mapping[int, LogPosition]
    newest_event_s: int


class RowLogs(Protocol):
    """The logs of all shards of a model."""

    folders: tuple[Path, ...]
    """Folder of each shard's log."""

    def write(self, take: Callable[[], Weights]) -> tuple[LogPositions, Weights]:
        """Write the changed rows; return the positions, and the dense weights of the same moment.

        Args:
            take: Copies the weights of this process.

        Raises:
            OSError: The rows could not be written. The next call writes them.
        """
        ...

    def base_of(self, tables: Path, state: LogPositions) -> BaseSnapshot:
        """Return a base snapshot.

        Args:
            tables: Folder of the snapshot.
            state: Positions of the last ``write`` before the snapshot.
        """
        ...

    def compact(self, base: BaseSnapshot) -> None:
        """Remove the segments that a base contains."""
        ...

    def drop_replaced(self) -> None:
        """Remove the segments that a later, published segment replaces. Called after each publish.

        Raises:
            OSError: A segment could not be removed. The next call removes it.
        """
        ...

    def close(self) -> None:
        """Release the logs."""
        ...


class LocalRowLog:
    """Delta log of the tables in this process. Its first segment holds all rows.

    A log that no checkpoint compacts stays bounded: past ``max_segments`` segments that are together as large as the
    last segment with all rows, the next segment holds all rows, and replaces the earlier ones once it is published.

    Args:
        root: Published folder; the log lies in a subfolder.
        tables: The tables. Only this object may write a delta log of them.
        clock: Clock of the segments' timestamps.
        lock: While it is entered, tables and weights do not change.
        flavour: ``serving``: values as the slices are served, the smallest form. ``durable``: with optimizer state,
            which fits exports of every precision.
        max_segments: Segments before the log may be compacted without a checkpoint.

    Raises:
        ConfigError: Another process publishes to the folder.
    """

    def __init__(
        self,
        root: str | PathLike[str],
        tables: MultiTable,
        *,
        clock: Clock,
        lock: AbstractContextManager[Any] | None = None,
        flavour: Flavour = "serving",
        max_segments: int = MAX_SEGMENTS,
    ) -> None:
        self.folders: tuple[Path, ...] = (shard_folder(Path(root), 0, 1),)
        self._tables = tables
        self._max_segments = max_segments
        self._complete = 0
        self._complete_bytes = 0
        self._later: list[int] = []
        self._replaced_before = 0
        self._writer = DeltaWriter(self.folders[0], (0, 1), tables, clock=clock, flavour=flavour, lock=lock)

    def write(self, take: Callable[[], Weights]) -> tuple[LogPositions, Weights]:
        """Write the changed rows, and call ``take`` at the same moment.

        Training waits while changed rows are copied.
        """

        def take_all() -> tuple[int, Weights]:
            return max((self._tables[name].max_time_s for name in self._tables), default=0), take()

        is_long = len(self._later) >= self._max_segments and sum(self._later) >= self._complete_bytes
        if is_long:
            self._writer.begin_again()
        before = self._writer.sequence
        sequence, (newest_event_s, taken) = self._writer.cut(take_all)
        if sequence != before:
            self._count(sequence, is_complete=is_long or not self._complete)
        position = LogPosition(self._writer.log, sequence)
        return LogPositions(positions={0: position}, newest_event_s=newest_event_s), taken

    def base_of(self, tables: Path, state: LogPositions) -> BaseSnapshot:
        """Return a base snapshot with these positions: training was paused between the publish and the snapshot."""
        return BaseSnapshot(tables=tables, positions=state.positions)

    def compact(self, base: BaseSnapshot) -> None:
        """Remove the segments that a base contains."""
        if base.positions[0].log == self._writer.log:
            self._writer.compact(base.positions[0].sequence)
            self._later.clear()

    def drop_replaced(self) -> None:
        """Remove the segments before a published one with all rows."""
        if self._replaced_before:
            self._writer.compact(self._replaced_before)
            self._replaced_before = 0

    def _count(self, sequence: int, *, is_complete: bool) -> None:
        size = segment_path(self.folders[0], sequence).stat().st_size
        if not is_complete:
            self._later.append(size)
            return
        if self._complete:
            logger.info("delta log compacted folder=%s segments=%d", self.folders[0], len(self._later) + 1)
        self._replaced_before = sequence  # also the segments of an earlier process
        self._complete, self._complete_bytes, self._later = sequence, size, []

    def close(self) -> None:
        """Release the log for another process."""
        self._writer.close()


class Publisher:
    """Publishes the rows and dense weights of a model. Thread safe.

    Args:
        root: Folder to publish to; servers read it.
        rows: Logs of the rows.
        weights: Copies the dense weights; called while neither rows nor weights change.
        clock: Clock of the cuts' timestamps.

    Raises:
        ConfigError: Another publisher uses the folder.
    """

    def __init__(
        self,
        root: str | PathLike[str],
        rows: RowLogs,
        weights: Callable[[], Weights],
        *,
        clock: Clock,
    ) -> None:
        self.root = Path(root)
        make_folder(self.root)
        self._claim: int | None = _claim(self.root)
        try:
            self._epoch = _take_epoch(self.root, self._claim)
            for leftover in self.root.glob("*.json.tmp-*"):  # of a killed publisher
                leftover.unlink(missing_ok=True)
            self._dense = DenseWriter(self.root)
        except BaseException:
            os.close(self._claim)
            raise
        self._rows = rows
        self._weights = weights
        self._clock = clock
        self._turn = threading.Lock()
        self._published: tuple[Mapping[int, LogPosition], int] | None = None
        self._ages: deque[CutAges] = deque(maxlen=MOST_CUTS)
        self.events = EventAges()
        """Takes the event times of trained rows; a cut carries their ages."""
        self.newest: Cut | None = None
        """The last cut that this object published."""

    def publish(self) -> LogPositions:
        """Publish the changes since the last call, if any; return the positions of the logs.

        Raises:
            OSError: A file could not be written. The current cut stays, and the next call publishes the changes.
            VersionConflict: Another publisher has opened the folder, on a file system without locks.
        """
        with self._turn:
            self._check_epoch()
            trained = self.events.take()
            try:
                return self._publish(trained)
            except BaseException:
                self.events.put_back(trained)
                raise

    def _publish(self, trained: list[TrainedRows]) -> LogPositions:
        state, weights = self._rows.write(self._weights)
        dense = self._dense.write(weights)
        if (state.positions, dense) != self._published:
            now_s = self._clock.now_s()
            ages = [*self._ages, CutAges(0, now_s, self.events.count(trained, now_s))] if trained else self._ages
            cut = Cut(
                sequences={shard: position.sequence for shard, position in state.positions.items()},
                dense=dense,
                newest_event_s=state.newest_event_s,
                epoch=self._epoch,
                ages=tuple(ages)[-MOST_CUTS:],
                folders=tuple(os.path.relpath(folder, self.root) for folder in self._rows.folders),
            )
            self.newest = publish(self.root, cut, clock=self._clock)
            self._ages = deque(self.newest.ages, MOST_CUTS)
            self._published = state.positions, dense
            self.events.report(trained, now_s)
            logger.debug("cut published cut=%d dense=%d", self.newest.number, dense)
            try:
                self._rows.drop_replaced()
            except OSError as error:
                logger.warning("log compaction failed root=%s error=%s", self.root, error)
        elif trained:
            self.events.put_back(trained)  # nothing changed: no cut contains these rows yet
        return state

    def _check_epoch(self) -> None:
        """Check that no publisher has opened the folder since: two would write two states under equal versions."""
        newest = _read_epoch(self.root)
        if newest > self._epoch:
            raise VersionConflict(
                f"epoch of this publisher is {self._epoch}, expected {newest} as in '{self.root / LOCK}': another "
                f"publisher uses the folder; stop one of them"
            )

    def rebase(self, tables: Path, state: LogPositions) -> None:
        """Make a safe snapshot the base that followers start from, and drop the segments before it.

        Args:
            tables: Folder of the snapshot.
            state: The result of ``publish`` when the snapshot was taken.

        Raises:
            OSError: The base could not be written. The logs keep all segments.
        """
        base = self._rows.base_of(tables, state)
        with self._turn:
            self._check_epoch()
            write_base(self.root, base)
            self._rows.compact(base)

    def close(self) -> None:
        """Release the folder for another publisher."""
        with self._turn:
            self._rows.close()
            if self._claim is not None:
                os.close(self._claim)
                self._claim = None


def _claim(root: Path) -> int:
    """Lock the folder for this publisher: two publishers would write two states under equal version numbers."""
    handle = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ConfigError(
            f"'{root}' is in use by another publisher, expected one per folder; stop it, or set another publish_dir"
        ) from None
    return handle


def _take_epoch(root: Path, claim: int) -> int:
    """Return the fencing number of this publisher, and store it in the lock file.

    Locks do not work between machines on every file system. The number does: a publisher that finds a larger one
    stops.
    """
    try:
        published = read_cut(root)
    except (ManifestInvalid, VersionConflict):
        published = None  # ``publish`` replaces or refuses the file
    epoch = max(_read_epoch(root), published.epoch if published else 0) + 1
    os.pwrite(claim, b"%020d\n" % epoch, 0)
    os.fsync(claim)
    return epoch


def _read_epoch(root: Path) -> int:
    try:
        text = (root / LOCK).read_bytes().strip()
    except FileNotFoundError:
        return 0
    return int(text) if text.isdigit() else 0
