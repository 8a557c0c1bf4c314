"""Impressions with ten features and the actions that follow a part of them, in batches in the order of arrival."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from monolith.stream.line_id import ACTION, MESSAGES

__all__ = ["BATCH", "FEATURES", "FULL", "INGEST_MS", "OUT_OF_ORDER_MS", "QUICK", "WINDOW_MS", "Sizes", "make_batches"]

BATCH = 1000
FEATURES = 10
WINDOW_MS = 10_000
OUT_OF_ORDER_MS = 1_000
_START_MS = 1_700_000_000_000
INGEST_MS = _START_MS + 1_000_000_000
_ITEMS_PER_REQUEST = 10
_ACTION_SHARE = 0.1
_SEED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Size of a run."""

    events: int
    """Events of the speed case."""
    impressions: int
    """Open impressions of the memory case."""
    rounds: int
    quick: bool = False


FULL = Sizes(events=200_000, impressions=1_000_000, rounds=5)
QUICK = Sizes(events=30_000, impressions=100_000, rounds=3, quick=True)


def make_batches(events: int) -> Iterator[list[bytes]]:
    """Yield batches of serialized events, one millisecond of event time apart."""
    random = Random(_SEED)
    batch: list[bytes] = []
    key = b""
    waiting: list[tuple[int, bytes, int]] = []
    for number in range(events):
        time_ms = _START_MS + number
        if waiting and waiting[0][0] <= time_ms:
            batch.append(_make_action(*waiting.pop(0)))
        else:
            if not key or number % _ITEMS_PER_REQUEST == 0:
                key = random.randbytes(16)
            batch.append(_make_impression(number, key, time_ms, random))
            if random.random() < _ACTION_SHARE:
                waiting.append((time_ms + 3_000, key, number))
        if len(batch) == BATCH:
            yield batch
            batch = []


def _make_impression(number: int, key: bytes, time_ms: int, random: Random) -> bytes:
    example: Any = MESSAGES.Example()
    for index in range(FEATURES):
        named = example.named_feature.add()
        named.name = f"feature_name_{index}"
        named.feature.fid_v2_list.value.append((index << 54) | random.getrandbits(40))
    line_id = example.line_id
    line_id.uid, line_id.item_id, line_id.model_version = random.getrandbits(40), number, 3
    line_id.request_key, line_id.event_time_ms = key, time_ms
    return bytes(example.SerializeToString())


def _make_action(time_ms: int, key: bytes, item: int) -> bytes:
    example: Any = MESSAGES.Example()
    line_id = example.line_id
    line_id.event_kind, line_id.item_id, line_id.request_key, line_id.event_time_ms = ACTION, item, key, time_ms
    line_id.actions.append(1)
    return bytes(example.SerializeToString())
