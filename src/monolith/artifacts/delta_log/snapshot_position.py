"""The segment of a shard's delta log that a snapshot contains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from monolith.artifacts.delta_log.segment import LogPosition

__all__ = ["SavedTableLike", "position_in"]


class _SavedShardLike(Protocol):
    @property
    def log(self) -> Mapping[str, int] | None: ...


class SavedTableLike(Protocol):
    """The part of ``monolith.embedding.snapshot.SavedTable`` that names delta logs."""

    @property
    def shards(self) -> Sequence[_SavedShardLike]:
        """One per process that saved the table."""


def position_in(saved: Sequence[SavedTableLike], index: int, shards: int) -> LogPosition | None:
    """Return the segment of shard ``index`` that a snapshot contains; None if the snapshot names none.

    Args:
        saved: Tables of the snapshot, from its manifest.
        index: The shard.
        shards: Number of shards; a snapshot of another number names no usable segment.
    """
    if not saved or len(saved[0].shards) != shards:
        return None
    log = saved[0].shards[index].log
    return None if log is None else LogPosition(**log)
