"""What a source of records is. Files, streams and tables each are one; nothing here knows any of them.

A source gives **records**: serialized messages, some at a time, each lot with the name of the stream and the offset of
every record. Whatever a source reads (Parquet columns, data frames) it turns into records, so that parsing, transforms
and resuming are written once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from monolith import _native

__all__ = ["Position", "RecordKind", "Source"]

RecordKind: TypeAlias = Literal["instance", "example", "example_batch", "example_batch_row_major", "tf_example"]
"""Which message a record is."""

Position: TypeAlias = Mapping[str, Any]
"""Where a source stands: plain JSON (dicts, lists, strings, numbers), small, and enough to go on from."""


class Source(Protocol):
    """A resumable stream of records. Used by one thread at a time; ``committed`` and ``close`` may come from another.

    A source starts at its beginning. After ``resume(position())`` on a fresh, equal source, the next ``read`` gives the
    records that would have come next here: none is lost and none comes twice.
    """

    @property
    def record(self) -> RecordKind:
        """Which message the records are."""

    @property
    def is_ordered(self) -> bool:
        """Whether a position is always followed by the same records in the same order.

        It is not where several partitions of a broker arrive as they please; ``resume`` is then told what followed.
        """

    def read(self) -> _native.Records | None:
        """Return the next lot of records (from one to a few thousand), or None at the end.

        A stream without end waits until something comes; ``close`` from another thread ends the wait.

        Raises:
            RecordCorrupt: The stream is damaged; the text names stream, offset and remedy.
        """

    def position(self) -> Position:
        """Return the place after the records that ``read`` gave last. Cheap: it is asked after every lot."""

    def resume(self, position: Position, then: Sequence[Position] = ()) -> None:
        """Go to a place that ``position`` gave, before the first ``read``.

        Args:
            position: The place.
            then: The places behind the lots that were read after it, in order. A source that is not ordered gives
                those records first, in that order.

        Raises:
            DataError: The input is no longer what it was (a file is gone, or shorter than it was).
        """

    def committed(self, position: Position) -> None:
        """Take note that everything up to ``position`` is safe in a checkpoint. Brokers are told; files ignore it."""

    def close(self) -> None:
        """Let go of files and connections. May be called twice."""
