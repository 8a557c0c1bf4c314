"""Numbered impressions and actions for tests of the joiner."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from monolith.stream.line_id import ACTION, MESSAGES

START_MS = 1_700_000_000_000


def make_impression(number: int, key: bytes, item: int, time_ms: int, features: int = 3) -> bytes:
    """Return an Example whose features name its number."""
    example: Any = MESSAGES.Example()
    for index in range(features):
        named = example.named_feature.add()
        named.name = f"feature_{index}"
        named.feature.fid_v2_list.value.append((index << 54) | number)
    line_id = example.line_id
    line_id.uid, line_id.item_id, line_id.request_key, line_id.event_time_ms = number, item, key, time_ms
    return bytes(example.SerializeToString())


def make_action(key: bytes, item: int, code: int, time_ms: int) -> bytes:
    """Return the Example of an action."""
    example: Any = MESSAGES.Example()
    line_id = example.line_id
    line_id.event_kind, line_id.item_id, line_id.request_key, line_id.event_time_ms = ACTION, item, key, time_ms
    line_id.actions.append(code)
    return bytes(example.SerializeToString())


def numbered_events(count: int, seed: int, step_ms: int = 10) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield (key, value, time) of impressions, actions, copies and broken records, in order of arrival."""
    random = Random(seed)
    for number in range(count):
        time_ms = START_MS + number * step_ms
        key, item = b"request-%d" % (number // 2), number % 2
        yield key, make_impression(number, key, item, time_ms), time_ms
        if random.random() < 0.1:
            yield key, make_impression(number, key, item, time_ms), time_ms
        if random.random() < 0.4 and number > 20:
            chosen = number - random.randrange(1, 15)
            delay_ms = random.randrange(step_ms * 30)
            chosen_ms = START_MS + chosen * step_ms + delay_ms
            yield (
                b"request-%d" % (chosen // 2),
                make_action(b"request-%d" % (chosen // 2), chosen % 2, random.randrange(1, 4), chosen_ms),
                chosen_ms,
            )
        if random.random() < 0.02:
            yield key, b'{"kind":"view","number":%d}' % number, time_ms
