"""Publishing: rows and dense weights of one moment are written, and then named together as a cut.

Who calls, how often, and what keeps training from going on meanwhile, comes in from outside.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from monolith.artifacts.delta_log import Cut, DeltaWriter, Flavour, LogPosition, publish, shard_folder
from monolith.core.clock import Clock
from monolith.embedding import MultiTable
from monolith.sync.base import Base, write_base
from monolith.sync.dense_versions import DenseWriter

__all__ = ["LocalRows", "Publisher", "RowState", "Rows", "Weights"]

logger = logging.getLogger(__name__)

Weights: TypeAlias = Mapping[str, NDArray[Any]]
"""Dense weights, by the names that a checkpoint gives them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowState:
    """Where the logs of all shards are."""

    positions: Mapping[int, LogPosition]
    newest_event_s: int


class Rows(Protocol):
    """The logs of all shards of a model."""

    folders: tuple[Path, ...]
    """The log of each shard."""

    def write(self, take: Callable[[], Weights]) -> tuple[RowState, Weights]:
        """Write what has changed; return also the dense weights of that instant.

        Args:
            take: Copies the weights of this process.

        Raises:
            OSError: It could not be written, and comes with the next call.
        """
        ...

    def base_of(self, tables: Path, state: RowState) -> Base:
        """Return a snapshot as what to begin with; ``state`` is what was written last before it was taken."""
        ...

    def compact(self, base: Base) -> None:
        """Remove what a base contains from the logs."""
        ...

    def close(self) -> None:
        """Let go of the logs."""
        ...


class LocalRows:
    """The one log of tables in this process; its first segment holds all rows.

    Args:
        root: What is published; the log lies in a folder of it.
        tables: The tables. Nobody else may write a delta log of them.
        clock: What segments are stamped with.
        lock: Keeps everybody from changing tables and weights while it is entered.
        flavour: ``serving``: values as the tables' slices are served, the smallest form. ``durable``: with optimizer
            state, which fits exports of every precision.

    Raises:
        ConfigError: Another process publishes there.
    """

    def __init__(
        self,
        root: str | PathLike[str],
        tables: MultiTable,
        *,
        clock: Clock,
        lock: AbstractContextManager[Any] | None = None,
        flavour: Flavour = "serving",
    ) -> None:
        self.folders: tuple[Path, ...] = (shard_folder(Path(root), 0, 1),)
        self._tables = tables
        self._writer = DeltaWriter(self.folders[0], (0, 1), tables, clock=clock, flavour=flavour, lock=lock)

    def write(self, take: Callable[[], Weights]) -> tuple[RowState, Weights]:
        """Write what has changed, and call ``take`` at that instant; training waits while changed rows are copied."""

        def take_all() -> tuple[int, Weights]:
            return max((self._tables[name].max_time_s for name in self._tables), default=0), take()

        sequence, (newest_event_s, taken) = self._writer.cut(take_all)
        position = LogPosition(self._writer.log, sequence)
        return RowState(positions={0: position}, newest_event_s=newest_event_s), taken

    def base_of(self, tables: Path, state: RowState) -> Base:
        """Return a snapshot as what to begin with: nothing was learnt between the publish and the snapshot."""
        return Base(tables=tables, positions=state.positions)

    def compact(self, base: Base) -> None:
        """Remove what a base contains from the log."""
        if base.positions[0].log == self._writer.log:
            self._writer.compact(base.positions[0].sequence)

    def close(self) -> None:
        """Let another process write to the log."""
        self._writer.close()


class Publisher:
    """Publishes the rows and dense weights of a model, as often as it is asked to. Safe to use from several threads.

    Args:
        root: The folder to publish in; servers read it.
        rows: The logs of the rows.
        weights: Copies the dense weights; called while nothing changes.
        clock: What cuts are stamped with.
    """

    def __init__(
        self,
        root: str | PathLike[str],
        rows: Rows,
        weights: Callable[[], Weights],
        *,
        clock: Clock,
    ) -> None:
        self.root = Path(root)
        self.root.mkdir(parents=True, exist_ok=True)
        self._rows = rows
        self._weights = weights
        self._clock = clock
        self._dense = DenseWriter(self.root)
        self._turn = threading.Lock()
        self._published: tuple[Mapping[int, LogPosition], int] | None = None
        self.newest: Cut | None = None
        """The cut that was published last by this object."""

    def publish(self) -> RowState:
        """Publish what has changed since the last call, if anything; return where the logs are.

        Raises:
            OSError: Something could not be written. The published cut stays as it was, and what changed comes with the
                next one.
        """
        with self._turn:
            state, weights = self._rows.write(self._weights)
            dense = self._dense.write(weights)
            if (state.positions, dense) != self._published:
                cut = Cut(
                    sequences={shard: position.sequence for shard, position in state.positions.items()},
                    dense=dense,
                    newest_event_s=state.newest_event_s,
                    folders=tuple(os.path.relpath(folder, self.root) for folder in self._rows.folders),
                )
                self.newest = publish(self.root, cut, clock=self._clock)
                self._published = state.positions, dense
                logger.debug("published cut=%d dense=%d", self.newest.number, dense)
            return state

    def rebase(self, tables: Path, state: RowState) -> None:
        """Let those who begin take a snapshot, which is safe, instead of what the logs have of before.

        Args:
            tables: The snapshot's folder.
            state: What ``publish`` returned when it was taken.

        Raises:
            OSError: It could not be noted; the logs keep everything.
        """
        base = self._rows.base_of(tables, state)
        with self._turn:
            write_base(self.root, base)
            self._rows.compact(base)

    def close(self) -> None:
        """Let another process publish here."""
        with self._turn:
            self._rows.close()
