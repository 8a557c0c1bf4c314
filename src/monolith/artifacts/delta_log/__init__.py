"""Delta log: every change to a shard's tables, in numbered and checksummed segments.

A log is one folder per shard, with one ``DeltaWriter`` and any number of ``DeltaReader``. Crash recovery, incremental
checkpoints, sync from training to serving, and time travel read the same segments. A ``Cut`` names one segment per
shard and one version of the dense weights that form a consistent state.
"""

from __future__ import annotations

from monolith.artifacts.delta_log.changed_ids import changed_ids, written_ids
from monolith.artifacts.delta_log.publish import Cut, publish, read_cut
from monolith.artifacts.delta_log.reader import DeltaReader, Replayed
from monolith.artifacts.delta_log.segment import (
    Flavour,
    LogPosition,
    Segment,
    TableChanges,
    segment_numbers,
    segment_path,
    shard_folder,
)
from monolith.artifacts.delta_log.snapshot_position import position_in
from monolith.artifacts.delta_log.writer import DeltaWriter, remove_log, set_aside_log

__all__ = [
    "Cut",
    "DeltaReader",
    "DeltaWriter",
    "Flavour",
    "LogPosition",
    "Replayed",
    "Segment",
    "TableChanges",
    "changed_ids",
    "position_in",
    "publish",
    "read_cut",
    "remove_log",
    "segment_numbers",
    "segment_path",
    "set_aside_log",
    "shard_folder",
    "written_ids",
]
