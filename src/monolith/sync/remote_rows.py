"""The rows of a model on parameter servers: published from the delta logs that the servers keep anyway.

How the servers are made to write them, and what is one moment of all of them, comes in from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from monolith.artifacts.delta_log import DeltaReader, LogPosition, position_in
from monolith.core.errors import ConfigError
from monolith.embedding.snapshot import read_manifest
from monolith.sync.base import Base
from monolith.sync.publisher import RowState, Weights

__all__ = ["Flush", "RemoteRows"]

Flush: TypeAlias = Callable[[Callable[[], Weights]], tuple[Sequence[LogPosition], Weights]]
"""Has every server write its log as it is at one moment; returns where each is, and the dense weights of that moment.

It is told how to copy the weights of this process.
"""


class RemoteRows:
    """The logs of the servers of a job.

    Args:
        flush: See ``Flush``.
        folders: The log of each server, as this process sees it.
    """

    def __init__(self, flush: Flush, folders: Sequence[Path]) -> None:
        self.folders: tuple[Path, ...] = tuple(folders)
        self._flush = flush

    def write(self, take: Callable[[], Weights]) -> tuple[RowState, Weights]:
        """Have the servers write what has changed.

        Raises:
            ConfigError: A server keeps no log, or its log is not in the folder that was given.
            ClusterError: A server is away.
        """
        positions, weights = self._flush(take)
        newest_event_s = max(self._newest_event_s(index, position) for index, position in enumerate(positions))
        return RowState(positions=dict(enumerate(positions)), newest_event_s=newest_event_s), weights

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
