"""Inputs and outputs of a join: ``JoinInput`` reads a partition, ``JoinSink`` appends batches to a partition.

An input returns its records in order. A sink appends a batch atomically under a sequence number, and knows the last
number that it holds. Both exist for the event log and for Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from monolith.stream.native_core import JoinBatch

__all__ = ["JoinInput", "JoinSink", "Lot"]


@dataclass(frozen=True, slots=True)
class Lot:
    """Records that one ``read`` of an input returned."""

    batch: JoinBatch
    offsets: Sequence[int]
    """The offset of each record, for dead letters."""
    uses_clock: bool = False
    """Whether the ingest time is the reader's clock, one for all records: a replay must repeat it."""


class JoinInput(Protocol):
    """One partition of an input topic. One thread uses an input."""

    @property
    def topic(self) -> str:
        """The name of the topic."""

    @property
    def partition(self) -> int:
        """The number of the partition."""

    @property
    def lost_records(self) -> int:
        """Number of records that retention removed before ``read`` reached them, or that lay in skipped damage."""

    def read(self, most_records: int, wait_s: float) -> Lot | None:
        """Return the next records, or None if none arrives within ``wait_s``.

        Raises:
            DataError: Retention removed the next record, or a record is corrupt.
        """

    def is_at_end(self) -> bool:
        """Return True if no record is left to read now."""

    def has_reached_end(self) -> bool:
        """Return True if the last ``read`` found no record because none was left.

        False if the broker did not answer yet: such an input is not idle. Asks no broker.
        """

    def position(self) -> Mapping[str, Any]:
        """Return the position after the last record of ``read``, as plain JSON values."""

    def resume(self, position: Mapping[str, Any]) -> None:
        """Continue at a position, whose next record is the next of ``read``.

        Raises:
            DataError: The partition does not hold the position any more.
        """

    def skip_to(self, offset: int) -> None:
        """Continue at ``offset``, where a replay must. No effect if it is the next record.

        Raises:
            DataError: The partition does not hold the offset any more.
        """

    def committed(self, position: Mapping[str, Any]) -> None:
        """Handle that a snapshot covers ``position``: the joiner reads no earlier record again."""

    def close(self) -> None:
        """Release files and connections. May be called twice."""


class JoinSink(Protocol):
    """One partition of an output topic. One thread uses a sink."""

    def take_over(self) -> int:
        """Fence earlier owners of the sink and return the last sequence number that the partition holds, else 0."""

    def append(self, sequence: int, keys: Sequence[bytes], values: Sequence[bytes], times_ms: Sequence[int]) -> None:
        """Append a batch, all of it or nothing. The batch survives a crash once the call returns.

        Raises:
            OSError: The disk is full. Nothing was appended; the caller may try again.
            ClusterError: Another process took over the sink.
        """

    def close(self) -> None:
        """Release files and connections. May be called twice."""
