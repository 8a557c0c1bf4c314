"""``Source``: the Protocol of all inputs of a dataset. ``Sink``: the Protocol of all outputs of events.

A source returns **records**, serialized messages, in chunks. A chunk has the name of its stream, and an offset for
every record. Sources of columns (Parquet, data frames) encode them as records, so that parsing, transforms and resuming
exist once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from monolith import _native
from monolith.telemetry.names import MetricSpec

__all__ = ["MeteredSource", "MetricSink", "Position", "RecordKind", "Sink", "Source"]

RecordKind: TypeAlias = Literal["instance", "example", "example_batch", "example_batch_row_major", "tf_example"]
"""The message type of a record."""

Position: TypeAlias = Mapping[str, Any]
"""The position of a source: small, plain JSON (dicts, lists, strings, numbers), and enough to resume from."""

MetricSink: TypeAlias = Callable[[MetricSpec, float, tuple[str, ...]], None]
"""Receives a metric, a number (a counter's increment or a gauge's value) and the values of its labels."""


@runtime_checkable
class MeteredSource(Protocol):
    """A source with metrics."""

    def export_to(self, metrics: MetricSink) -> None:
        """Send counts and lag to ``metrics``. Call it before the first ``read``."""


class Source(Protocol):
    """A resumable stream of records. Used by one thread at a time; ``committed`` and ``close`` may come from another.

    A source starts at its beginning. After ``resume(position())`` on a new, equal source, its next ``read`` returns the
    records that would have come next here. No record is lost or repeated.
    """

    @property
    def record(self) -> RecordKind:
        """The message type of the records."""

    @property
    def is_ordered(self) -> bool:
        """True if a position is always followed by the same records in the same order.

        False where partitions of a broker arrive in any order; ``resume`` then takes the positions that followed.
        """

    def read(self) -> _native.Records | None:
        """Return the next chunk of records (from one to a few thousand), or None at the end.

        An endless stream waits for records; ``close`` from another thread ends the wait.

        Raises:
            RecordCorrupt: The stream is corrupt; the text names stream, offset and remedy.
        """

    def position(self) -> Position:
        """Return the position after the last chunk that ``read`` returned. Cheap: called after every chunk."""

    def resume(self, position: Position, then: Sequence[Position] = ()) -> None:
        """Go to a position that ``position`` returned, before the first ``read``.

        Args:
            position: The position.
            then: The positions after the chunks that followed, in order. A source that is not ordered returns those
                records first, in that order.

        Raises:
            DataError: The input has changed (a file is absent, or shorter than before).
        """

    def committed(self, position: Position) -> None:
        """Handle that a checkpoint contains ``position``: commit offsets to a broker. Files ignore it."""

    def close(self) -> None:
        """Release files and connections. May be called twice."""


class Sink(Protocol):
    """A stream to write messages to. Messages of one key stay in order.

    A sink that cannot hold an empty message leaves it out.
    """

    def write(self, message: bytes, key: bytes | None = None, time_ms: int | None = None) -> None:
        """Accept one message; it may wait in memory until ``flush``.

        Args:
            message: The message.
            key: Chooses the partition; None = any.
            time_ms: Event time in unix milliseconds; None = now.

        Raises:
            ConfigError: The sink is closed, or the message is too large.
        """

    def flush(self) -> None:
        """Return when every accepted message is written.

        Raises:
            MonolithError: Messages are not written. Those that a retry may still write stay in the sink.
        """

    def close(self) -> None:
        """Flush and release files and connections. May be called twice."""
