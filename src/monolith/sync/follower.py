"""Move a loaded model from published cut to published cut.

``Follower`` polls a published folder and applies each new cut to a ``Target``. A target shows one cut at every moment,
never a state between two cuts. Each follower has one thread; ``status`` may be read from any thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from monolith.artifacts.delta_log import Cut, LogPosition, read_cut
from monolith.core.clock import Clock
from monolith.core.errors import (
    ConfigError,
    CutRefused,
    DeltaLogBroken,
    ManifestInvalid,
    MonolithError,
    SnapshotCorrupt,
)
from monolith.embedding import MultiTable
from monolith.sync.cut_pace import CutPace
from monolith.sync.dense_versions import DenseReader
from monolith.sync.row_updates import Move, plan_update, rebuild_tables

__all__ = ["Follower", "FollowerStatus", "Target"]

logger = logging.getLogger(__name__)

_LONGEST_PAUSE_S = 5.0
_DAMAGED_ATTEMPTS = 3
"""Attempts at one cut that find damaged files, before ``on_damaged`` is called. Fewer may be a race with compaction."""


class Target(Protocol):
    """A model that a follower moves."""

    @property
    def tables(self) -> MultiTable | None:
        """Rows of the model; None if other servers hold them."""
        ...

    @property
    def shard(self) -> tuple[int, int]:
        """(index, count) of the ids in the tables."""
        ...

    @property
    def has_weights(self) -> bool:
        """Whether the model holds dense weights."""
        ...

    def apply(
        self,
        move: Move | None = None,
        *,
        weights: Mapping[str, NDArray[Any]] | None = None,
        tables: MultiTable | None = None,
        cut: Cut | None = None,
    ) -> None:
        """Change rows and weights together. Predictions see the old state or the new one.

        Args:
            move: Changes rows of the tables in use.
            weights: Dense weights that changed.
            tables: New tables; they replace the tables in use.
            cut: The cut that the model shows afterwards.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerStatus:
    """State of a follower."""

    applied: Cut | None = None
    """The cut that the model shows; None while the model shows its export."""
    newest: Cut | None = None
    """The newest published cut that the follower has read."""
    failures: int = 0
    """Failed attempts to move."""
    error: str = ""
    """Error of the last attempt; empty if it succeeded."""

    @property
    def cuts_behind(self) -> int:
        """Number of cuts that are published and not applied."""
        if self.newest is None or self.newest == self.applied:
            return 0
        return max(1, self.newest.number - (0 if self.applied is None else self.applied.number))

    def age_s(self, now_s: float) -> float | None:
        """Return the age of the applied cut in seconds; None before the first cut.

        It grows while the trainer is dead or the follower fails, unlike ``lag_s``.
        """
        return None if self.applied is None else max(0.0, now_s - self.applied.published_at_s)

    def event_age_s(self, now_s: float) -> float | None:
        """Return the age of the newest event in the applied cut; None without one."""
        if self.applied is None or not self.applied.newest_event_s:
            return None
        return max(0.0, now_s - self.applied.newest_event_s)

    def lag_s(self, now_s: float) -> float:
        """Return how long the newest cut has been waiting, in seconds; 0 if it is applied."""
        if self.newest is None or not self.cuts_behind:
            return 0.0
        return max(0.0, now_s - self.newest.published_at_s)


class Follower:
    """Moves one model. One thread calls ``step``: the follower's thread after ``start``.

    Args:
        root: Published folder.
        target: The model.
        clock: Clock of lags and log lines.
        poll_s: Seconds between two looks for a new cut.
        name: Name of the model in log lines.
        on_applied: Called with every cut after it was applied.
        on_damaged: Called when the files of a cut stay damaged; a subscription then requests them again.
        is_part: Whether other processes hold parts of the same model, so that all should move to the same cuts.
    """

    def __init__(
        self,
        root: str | PathLike[str],
        target: Target,
        *,
        clock: Clock,
        poll_s: float = 0.05,
        name: str = "",
        on_applied: Callable[[Cut], None] | None = None,
        on_damaged: Callable[[], None] | None = None,
        is_part: bool = False,
    ) -> None:
        if not poll_s > 0:
            raise ConfigError(f"poll_s is {poll_s!r}, expected a number above 0")
        self._root = Path(root)
        self._target = target
        self._clock = clock
        self._poll_s = poll_s
        self._name = name
        self._on_applied = on_applied or (lambda cut: None)
        self._on_damaged = on_damaged or (lambda: None)
        self._damaged = 0
        self._pause_s = poll_s
        self._pace = CutPace() if is_part else None
        self._dense = DenseReader(root)
        self._at: Mapping[int, LogPosition] = {}
        self._status = FollowerStatus()
        self._refused: Cut | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def status(self) -> FollowerStatus:
        """Current state of the follower."""
        return self._status

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread that follows until ``close``."""
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following after the current move. A second call does nothing."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._pause_s):
            self.try_step()

    def try_step(self) -> bool:
        """Call ``step``; on failure log the error once, keep it in ``status``, and leave the model unchanged."""
        try:
            has_moved = self.step()
        except Exception as error:  # an unexpected class must not stop the thread: the model would silently age
            self._note_failure(error)
            return False
        self._pause_s, self._damaged = self._poll_s, 0
        return has_moved

    def _note_failure(self, error: Exception) -> None:
        is_expected = isinstance(error, MonolithError | OSError)
        text = str(error) if is_expected else f"{type(error).__name__}: {error}"
        if text != self._status.error:
            logger.warning(
                "cut not applied, retrying model=%s error=%s", self._name, text, exc_info=None if is_expected else error
            )
        self._status = replace(self._status, failures=self._status.failures + 1, error=text)
        self._pause_s = max(self._poll_s, min(2 * self._pause_s, _LONGEST_PAUSE_S))
        if isinstance(error, DeltaLogBroken | ManifestInvalid | SnapshotCorrupt):
            self._damaged += 1
            if self._damaged % _DAMAGED_ATTEMPTS == 0:
                self._on_damaged()

    def step(self) -> bool:
        """Move to the newest cut; return whether the model moved.

        Raises:
            ArtifactError: A published file is damaged, or was removed meanwhile.
            SchemaMismatch: The cut belongs to another model.
            CutRefused: The target refuses the cut. The follower does not try this cut again.
        """
        cut = read_cut(self._root)
        if cut is not None and cut == self._refused:
            return False  # one attempt per cut; the next cut starts from the state shown now
        started_s = self._clock.monotonic_s()
        is_taken = cut is None or self._pace is None or self._pace.takes(cut.number, started_s)
        if cut is None or cut == self._status.applied:
            if self._status.error:
                self._status = replace(self._status, error="")
            return False
        self._status = replace(self._status, newest=cut)
        if not is_taken and not self._status.error:
            return False
        weights, stamps = self._dense.changes(cut.dense) if self._target.has_weights and cut.dense else ({}, None)
        try:
            rows = self._move(cut, weights)
        except CutRefused:
            self._refused = cut
            raise
        if stamps is not None:
            self._dense.mark_applied(stamps)
        if self._pace is not None:
            self._pace.note_move(cut.number, self._clock.monotonic_s() - started_s, is_rebuild=rows is None)
        self._status = replace(self._status, applied=cut, error="")
        self._on_applied(cut)
        logger.log(
            logging.DEBUG if rows is not None else logging.INFO,
            "cut applied model=%s cut=%d rows=%s tensors=%d seconds=%.3f age_s=%.3f",
            self._name,
            cut.number,
            "all" if rows is None else rows,
            len(weights),
            self._clock.monotonic_s() - started_s,
            self._clock.now_s() - cut.published_at_s,
        )
        return True

    def _move(self, cut: Cut, weights: Mapping[str, NDArray[Any]]) -> int | None:
        """Move rows and weights; return the number of rows, None for a full rebuild."""
        target, tables = self._target, self._target.tables
        if tables is None:
            target.apply(weights=weights, cut=cut)
            return 0
        update = plan_update(self._root, cut, self._at)
        keep = target.shard
        if update.is_full_rebuild:
            target.apply(weights=weights, tables=rebuild_tables(update, tables, keep), cut=cut)
        else:
            with update.open(keep) as move:
                try:
                    target.apply(move, weights=weights, cut=cut)
                except CutRefused:
                    raise
                except BaseException:
                    if move.has_begun:  # rows may have changed in part: rebuild all of them at the next attempt
                        self._at = {}
                    raise
        self._at = update.positions
        return None if update.is_full_rebuild else update.rows
