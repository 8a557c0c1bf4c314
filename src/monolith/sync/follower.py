"""Following: a loaded model goes from published cut to published cut, and shows nothing in between.

What a model is, and who asks it meanwhile, is not known here.
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
from monolith.core.errors import ConfigError, CutRefused, MonolithError
from monolith.embedding import MultiTable
from monolith.sync.dense_versions import DenseReader
from monolith.sync.row_moves import Touched, opened, plan_move, rebuilt, replay, touched_ids

__all__ = ["Follower", "FollowerStatus", "Target"]

logger = logging.getLogger(__name__)


class Target(Protocol):
    """A model that can be moved."""

    @property
    def tables(self) -> MultiTable | None:
        """Its rows; None where it has none."""
        ...

    @property
    def shard(self) -> tuple[int, int]:
        """(index, count) of the ids that its tables hold."""
        ...

    @property
    def has_weights(self) -> bool:
        """Whether it has dense weights."""
        ...

    def apply(
        self,
        update: Callable[[MultiTable], None] | None = None,
        *,
        weights: Mapping[str, NDArray[Any]] | None = None,
        tables: MultiTable | None = None,
        cut: Cut | None = None,
        touched: Callable[[], Touched | None] | None = None,
    ) -> None:
        """Change rows, or replace all of them, and change weights, in one step as predictions see it.

        Args:
            update: Changes the tables.
            weights: Dense weights that changed.
            tables: Take the place of the tables.
            cut: What it then shows.
            touched: Gives the ids that ``update`` changes, by table; None where that are perhaps all.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerStatus:
    """Where a follower is."""

    applied: Cut | None = None
    """What the model shows; None while it shows what was exported."""
    newest: Cut | None = None
    """What was published last, as far as it is known here."""
    failures: int = 0
    """Looks that failed."""
    error: str = ""
    """Why the last look failed; empty when it did not."""

    @property
    def cuts_behind(self) -> int:
        """Cuts that are published and not applied."""
        if self.newest is None or self.newest == self.applied:
            return 0
        return max(1, self.newest.number - (0 if self.applied is None else self.applied.number))

    def lag_s(self, now_s: float) -> float:
        """Return for how long the newest cut has been waiting; 0 when it is applied."""
        if self.newest is None or not self.cuts_behind:
            return 0.0
        return max(0.0, now_s - self.newest.published_at_s)


class Follower:
    """Moves one model. ``step`` is called by one thread: the own one after ``start``.

    Args:
        root: What is published.
        target: The model.
        clock: Measures lag.
        poll_s: How long to wait before looking for another cut.
        name: What it is called in logs.
        on_applied: Told of every cut that the model has come to.
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
    ) -> None:
        if not poll_s > 0:
            raise ConfigError(f"poll_s is {poll_s}; give a number above 0")
        self._root = Path(root)
        self._target = target
        self._clock = clock
        self._poll_s = poll_s
        self._name = name
        self._on_applied = on_applied or (lambda cut: None)
        self._dense = DenseReader(root)
        self._at: Mapping[int, LogPosition] = {}
        self._status = FollowerStatus()
        self._refused: Cut | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def status(self) -> FollowerStatus:
        """Where it is."""
        return self._status

    def start(self) -> None:
        """Follow in a thread of its own until ``close``."""
        self._thread = threading.Thread(target=self._go_on, name="follower", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following, after the move under way; a second call does nothing."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _go_on(self) -> None:
        while not self._ended.wait(self._poll_s):
            self.try_step()

    def try_step(self) -> bool:
        """Like ``step``; what is wrong is kept in ``status`` and told in the log once, and the model stays as it is."""
        try:
            return self.step()
        except (MonolithError, OSError) as error:
            text = str(error)
            if text != self._status.error:
                logger.warning("the published state cannot be taken; trying again model=%s error=%s", self._name, text)
            self._status = replace(self._status, failures=self._status.failures + 1, error=text)
            return False

    def step(self) -> bool:
        """Move to the newest cut; return whether there was one to move to.

        Raises:
            ArtifactError: What was published is damaged, or was removed meanwhile.
            SchemaMismatch: It is of another model.
            CutRefused: The model does not take it; this cut is not tried again.
        """
        cut = read_cut(self._root)
        if cut is not None and cut == self._refused:
            return False  # one try each: the next cut is tried on top of what is shown
        if cut is None or cut == self._status.applied:
            if self._status.error:
                self._status = replace(self._status, error="")
            return False
        self._status = replace(self._status, newest=cut)
        started_s = self._clock.monotonic_s()
        weights, stamps = self._dense.changes(cut.dense) if self._target.has_weights and cut.dense else ({}, None)
        try:
            rows = self._move(cut, weights)
        except CutRefused:
            self._refused = cut
            raise
        if stamps is not None:
            self._dense.took(stamps)
        self._status = replace(self._status, applied=cut, error="")
        self._on_applied(cut)
        logger.log(
            logging.DEBUG if rows is not None else logging.INFO,
            "moved model=%s cut=%d rows=%s tensors=%d seconds=%.3f age_s=%.3f",
            self._name,
            cut.number,
            "all" if rows is None else rows,
            len(weights),
            self._clock.monotonic_s() - started_s,
            self._clock.now_s() - cut.published_at_s,
        )
        return True

    def _move(self, cut: Cut, weights: Mapping[str, NDArray[Any]]) -> int | None:
        """Move rows and weights; return how many rows, None for all of them."""
        target, tables = self._target, self._target.tables
        if tables is None:
            target.apply(weights=weights, cut=cut)
            return 0
        move = plan_move(self._root, cut, self._at)
        keep = target.shard
        if move.is_anew:
            target.apply(weights=weights, tables=rebuilt(move, tables, keep), cut=cut)
        else:
            with opened(move.segments) as held:
                target.apply(
                    lambda tables: replay(held, tables, keep),
                    weights=weights,
                    cut=cut,
                    touched=lambda: touched_ids(held, keep),
                )
        self._at = move.positions
        return None if move.is_anew else move.rows
