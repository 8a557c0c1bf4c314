"""Events that a joiner reads and rows that it emits.

``Impression``, ``Action`` and ``Watermark`` are inputs, ``Row`` is an output. Times are milliseconds of event time.
Every type is immutable, so threads may share values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

__all__ = ["END_OF_TIME", "INVALID", "Action", "Event", "Impression", "Row", "Watermark"]

INVALID: Final = -3.4028234663852886e38
"""The label of a task that a row does not teach: the lowest float32. Readers mask it."""

END_OF_TIME: Final = (1 << 63) - 1
"""The watermark at the end of a finite input. It closes every window."""


@dataclass(frozen=True, slots=True)
class Impression:
    """One item shown in one request. Its identity is (key, item).

    Args:
        time_ms: Event time; the window starts here.
        key: Request key, 1 to 256 bytes.
        item: Item id, unsigned 64 bits.
        payload: Features as served, opaque to the rules of the join.
        event_id: Order between two copies of an identity with equal times.
        ingest_time_ms: Append time in the input topic, for the output row; 0 if unknown.
    """

    time_ms: int
    key: bytes
    item: int
    payload: bytes = b""
    event_id: int = 0
    ingest_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a user on a shown item. ``code`` is the kind of action: 1 click, 2 like, and so on."""

    time_ms: int
    key: bytes
    item: int
    code: int


@dataclass(frozen=True, slots=True)
class Watermark:
    """The statement that the joiner expects no more events with a time below ``time_ms``."""

    time_ms: int


Event: TypeAlias = Impression | Action | Watermark
"""An input of a joiner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One emission of a joiner: a labelled example before its serialization."""

    impression: Impression
    labels: tuple[float, ...]
    """One label per task: 0, 1 or ``INVALID``."""
    actions: tuple[int, ...]
    """Codes known at this emission, ascending."""
    pre_actions: tuple[int, ...]
    """``actions`` of the row emitted before for this impression."""
    emission: int
    """Number of this emission of the impression, from 0. An undo row and its replacement share a number."""
    weight: float = 1.0
    """Weight of the example; below 0 on an undo row."""
    sample_rate: float = 1.0
    """Share of negatives that the sampler keeps, for the correction in the loss."""
    cause_time_ms: int = 0
    """Event time from which the row can exist: of the impression in fast mode, of the close in standard mode, or of the
    action that changed a label after these."""

    @property
    def key(self) -> bytes:
        """The request key of the impression."""
        return self.impression.key

    @property
    def item(self) -> int:
        """The item of the impression."""
        return self.impression.item
