"""The rows of a model on parameter servers: published from the delta logs that the servers keep anyway.

Knows the servers by what they write, and by the one call that has them write it now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from monolith.artifacts.delta_log import DeltaReader, LogPosition
from monolith.core.errors import ConfigError
from monolith.embedding.snapshot import read_manifest
from monolith.ps.durable_log import position_in
from monolith.sync.base import Base
from monolith.sync.publisher import RowState

__all__ = ["FlushedLogs", "RemoteRows"]

T = TypeVar("T")


class FlushedLogs(Protocol):
    """Servers whose logs can be brought up to date."""

    def flush_positions(self) -> tuple[LogPosition, ...]:
        """Have every server write its log now; return where each is."""
        ...


class RemoteRows:
    """The logs of the servers of a job with one worker.

    Args:
        store: The servers.
        folders: The log of each server, as this process sees it.
        lock: Keeps the worker from pushing while it is entered: then all servers have all of its pushes.
    """

    def __init__(self, store: FlushedLogs, folders: Sequence[Path], lock: AbstractContextManager[Any]) -> None:
        self.folders: tuple[Path, ...] = tuple(folders)
        self._store = store
        self._lock = lock

    def write(self, take: Callable[[], T]) -> tuple[RowState, T]:
        """Have the servers write what has changed, and call ``take`` while the worker waits.

        Raises:
            ConfigError: A server keeps no log, or its log is not in the folder that was given.
            ClusterError: A server is away.
        """
        self._store.flush_positions()  # so that little is left to be written while the worker waits
        with self._lock:
            positions = self._store.flush_positions()
            taken = take()
        newest_event_s = max(self._newest_event_s(index, position) for index, position in enumerate(positions))
        return RowState(positions=dict(enumerate(positions)), newest_event_s=newest_event_s), taken

    def _newest_event_s(self, index: int, position: LogPosition) -> int:
        if not position.sequence:
            return 0
        segment = DeltaReader(self.folders[index]).read(position.sequence)
        if segment.log != position.log:
            raise ConfigError(
                f"server {index} writes another delta log than that in '{self.folders[index]}'; publish_dir needs the "
                "servers' logs where this process can read them"
            )
        return segment.newest_event_s

    def base_of(self, tables: Path, state: RowState) -> Base:
        """Return a snapshot as what to begin with: it says itself which segments it is the state of."""
        saved, shards = read_manifest(tables), len(self.folders)
        found = {index: position_in(saved, index, shards) for index in range(shards)}
        return Base(
            tables=tables, positions={index: position for index, position in found.items() if position is not None}
        )

    def compact(self, base: Base) -> None:
        """Nothing to do here: the servers are told of every checkpoint by the job itself."""

    def close(self) -> None:
        """Nothing to do here: the logs are the servers'."""
