"""Events of a world: impressions and delayed actions in the order of their arrival, as records for the joiner.

``draw_events`` draws delays, jitter and duplicates; ``encode_events`` writes the events as Examples with the LineId
fields of the joiner. Both are functions of their arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from monolith.core.errors import ConfigError
from monolith.data.records.convert import batch_to_examples
from monolith.data.records.messages import parse_message
from monolith.demo.world.clicks import Clicks
from monolith.demo.world.files import example_batch
from monolith.stream.line_id import ACTION, IMPRESSION, MESSAGES

__all__ = [
    "CLICK",
    "LIKE",
    "EncodedEvent",
    "EventColumns",
    "EventDelays",
    "draw_events",
    "encode_action",
    "encode_events",
    "encode_impressions",
]

CLICK: Final = 1
"""Action code of a click."""
LIKE: Final = 2
"""Action code of a like."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDelays:
    """Laws of delays. An action follows its impression, or a like its click, by a lognormal time."""

    median_s: float = 3.0
    sigma: float = 1.2
    slow_share: float = 0.02
    """Share of actions with the slow median."""
    slow_median_s: float = 1_200.0
    jitter_s: float = 2.0
    """Most time between an event and its arrival, uniform."""
    duplicate_share: float = 0.001
    """Share of events that arrive twice."""

    def __post_init__(self) -> None:
        for name in ("slow_share", "duplicate_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"EventDelays.{name} is {getattr(self, name)}, expected a share from 0 to 1")
        for name in ("median_s", "slow_median_s", "sigma", "jitter_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"EventDelays.{name} is {getattr(self, name)}, expected a number of at least 0")

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """Return delays of actions in milliseconds."""
        median = np.where(rng.random(count) < self.slow_share, self.slow_median_s, self.median_s)
        delays: Ints = (1000 * median * np.exp(self.sigma * rng.standard_normal(count))).astype(np.int64)
        return delays


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EventColumns:
    """Events in the order of arrival."""

    code: Ints
    """0 for an impression, else the action code."""
    row: Ints
    """Row of the impression among the clicks."""
    time_ms: Ints
    """Event time."""
    arrival_ms: Ints
    """Time at which the event reaches the log."""

    def __len__(self) -> int:
        return len(self.code)


class EncodedEvent(NamedTuple):
    """One event as a record."""

    arrival_ms: int
    time_ms: int
    code: int
    """0 for an impression, else the action code."""
    key: bytes
    """The request key."""
    value: bytes


def draw_events(clicks: Clicks, delays: EventDelays | None = None, *, seed: int = 0) -> EventColumns:
    """Return the impressions and actions of ``clicks``, with delays, out of order and with duplicates.

    The order of arrival differs from that of event times by at most the jitter.
    """
    laws = delays or EventDelays()
    rng = np.random.default_rng([seed, 8])
    rows = np.arange(len(clicks))
    shown_ms = clicks.event_time_s * 1000 + rng.integers(0, 1000, len(clicks))
    clicked = np.flatnonzero(clicks.click == 1)
    clicked_ms = shown_ms[clicked] + laws.draw(rng, len(clicked))
    is_liked = clicks.like[clicked] == 1
    liked_ms = clicked_ms[is_liked] + laws.draw(rng, int(is_liked.sum()))
    code = np.concatenate([np.zeros(len(rows), np.int64), np.full(len(clicked), CLICK), np.full(len(liked_ms), LIKE)])
    row = np.concatenate([rows, clicked, clicked[is_liked]])
    time_ms = np.concatenate([shown_ms, clicked_ms, liked_ms])
    twice = np.flatnonzero(rng.random(len(code)) < laws.duplicate_share)
    code, row, time_ms = (np.concatenate([each, each[twice]]) for each in (code, row, time_ms))
    arrival_ms = time_ms + (1000 * laws.jitter_s * rng.random(len(code))).astype(np.int64)
    order = arrival_ms.argsort(kind="stable")
    return EventColumns(code=code[order], row=row[order], time_ms=time_ms[order], arrival_ms=arrival_ms[order])


def encode_events(clicks: Clicks, events: EventColumns, *, first_request: int = 0) -> Iterator[EncodedEvent]:
    """Yield the events as records: impressions with their features, actions without.

    Args:
        clicks: The rows of the impressions.
        events: Their events.
        first_request: Number of the first row's request, so that the keys of several parts of a stream differ.
    """
    impressions = encode_impressions(clicks)
    for code, row, time_ms, arrival_ms in zip(
        events.code.tolist(), events.row.tolist(), events.time_ms.tolist(), events.arrival_ms.tolist(), strict=True
    ):
        key = b"%016x" % (first_request + row)
        item, uid = int(clicks.item_id[row]), int(clicks.user_id[row])
        if code == 0:
            example: Any = MESSAGES.Example()
            example.CopyFrom(impressions[row])
            example.line_id.event_kind = IMPRESSION
            example.line_id.item_id = item
            example.line_id.request_key = key
            example.line_id.event_time_ms = time_ms
            value = example.SerializeToString(deterministic=True)
        else:
            value = encode_action(key, item, code, time_ms, uid=uid)
        yield EncodedEvent(arrival_ms, time_ms, code, key, value)


def encode_action(key: bytes, item: int, code: int, time_ms: int, *, uid: int = 0) -> bytes:
    """Return an action as a record."""
    example: Any = MESSAGES.Example()
    line_id = example.line_id
    line_id.event_kind = ACTION
    line_id.actions.append(code)
    line_id.uid = uid
    line_id.item_id = item
    line_id.request_key = key
    line_id.event_time_ms = time_ms
    value: bytes = example.SerializeToString(deterministic=True)
    return value


def encode_impressions(clicks: Clicks) -> list[Any]:
    """Return one unlabelled Example per row."""
    examples = batch_to_examples(parse_message(MESSAGES.ExampleBatch, example_batch(clicks)))
    for example in examples:
        example.ClearField("label")
    return examples
