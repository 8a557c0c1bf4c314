"""Publish rows of parameter servers from the delta logs that the servers keep for recovery.

``ServerDeltaLogs`` is the ``RowLogs`` of a job with servers. The caller passes ``Flush``, which makes all servers write
their logs at one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from monolith.artifacts.delta_log import DeltaReader, LogPosition, position_in
from monolith.core.errors import ConfigError
from monolith.embedding.snapshot import read_manifest
from monolith.sync.base_snapshot import BaseSnapshot
from monolith.sync.publisher import LogPositions, Weights

__all__ = ["Flush", "ServerDeltaLogs"]

Flush: TypeAlias = Callable[[Callable[[], Weights]], tuple[Sequence[LogPosition], Weights]]
"""Makes every server write its log at one moment.

Takes the function that copies the weights of this process. Returns the position of each log, and the dense weights of
the same moment.
"""


class ServerDeltaLogs:
    """Delta logs of a job's parameter servers.

    Args:
        flush: Makes the servers write their logs.
        folders: Folder of each server's log, as this process sees it.
    """

    def __init__(self, flush: Flush, folders: Sequence[Path]) -> None:
        self.folders: tuple[Path, ...] = tuple(folders)
        self._flush = flush

    def write(self, take: Callable[[], Weights]) -> tuple[LogPositions, Weights]:
        """Make the servers write their changed rows.

        Raises:
            ConfigError: A server keeps no log, or its log is not in the configured folder.
            ClusterError: A server is unavailable.
        """
        positions, weights = self._flush(take)
        newest_event_s = max(self._newest_event_s(index, position) for index, position in enumerate(positions))
        return LogPositions(positions=dict(enumerate(positions)), newest_event_s=newest_event_s), weights

    def _newest_event_s(self, index: int, position: LogPosition) -> int:
        if not position.sequence:
            return 0
        segment = DeltaReader(self.folders[index]).read(position.sequence)
        if segment.log != position.log:
            raise ConfigError(
                f"delta log of server {index} is not the one in '{self.folders[index]}'; publish_dir needs server logs "
                "that this process can read"
            )
        return segment.newest_event_s

    def base_of(self, tables: Path, state: LogPositions) -> BaseSnapshot:
        """Return a base snapshot with the positions in its own manifest."""
        saved, shards = read_manifest(tables), len(self.folders)
        positions = {index: position_in(saved, index, shards) for index in range(shards)}
        return BaseSnapshot(
            tables=tables, positions={index: position for index, position in positions.items() if position is not None}
        )

    def compact(self, base: BaseSnapshot) -> None:
        """Do nothing: the job compacts the servers' logs after every checkpoint."""

    def drop_replaced(self) -> None:
        """Do nothing: the servers own the logs."""

    def close(self) -> None:
        """Do nothing: the servers own the logs."""
