"""Events of the world follow the laws of delays, and the joiner makes the true labels of them."""

from __future__ import annotations

import numpy as np
import pytest

from monolith.core.errors import ConfigError
from monolith.demo.world import Clicks, DriftingWorld
from monolith.demo.world.events import CLICK, LIKE, EventDelays, draw_events, encode_events
from monolith.stream import (
    END_OF_TIME,
    EventParser,
    Impression,
    JoinSettings,
    RecordPlace,
    ReferenceJoiner,
    parse_tasks,
)


@pytest.fixture(scope="module")
def clicks() -> Clicks:
    return DriftingWorld(users=100, items=30, events_per_s=50.0).clicks(20_000)


def test_delays_are_lognormal_with_a_slow_part(clicks: Clicks) -> None:
    events = draw_events(clicks, EventDelays(duplicate_share=0.0))
    shown = np.empty(len(clicks), np.int64)
    is_shown = events.code == 0
    shown[events.row[is_shown]] = events.time_ms[is_shown]
    is_click = events.code == CLICK
    delay_s = (events.time_ms[is_click] - shown[events.row[is_click]]) / 1000
    assert np.median(delay_s) == pytest.approx(3.1, abs=0.3)
    assert np.mean(delay_s < 14) == pytest.approx(0.98 * 0.9, abs=0.02)
    assert np.mean(delay_s > 300) == pytest.approx(0.02 * 0.88, abs=0.006)
    assert (delay_s >= 0).all()


def test_events_arrive_in_order_of_arrival_within_the_jitter_and_some_twice(clicks: Clicks) -> None:
    events = draw_events(clicks, EventDelays(duplicate_share=0.01))
    assert (np.diff(events.arrival_ms) >= 0).all()
    late = events.arrival_ms - events.time_ms
    assert late.min() >= 0
    assert late.max() < 2000
    assert (np.diff(events.time_ms) < 0).any(), "no event overtakes another"
    expected = len(clicks) + clicks.click.sum() + clicks.like.sum()
    assert expected < len(events) < expected * 1.02


def test_a_seed_gives_the_same_events(clicks: Clicks) -> None:
    assert np.array_equal(draw_events(clicks, seed=3).arrival_ms, draw_events(clicks, seed=3).arrival_ms)
    assert not np.array_equal(draw_events(clicks, seed=3).arrival_ms, draw_events(clicks, seed=4).arrival_ms)


def test_the_joiner_makes_the_true_labels_of_the_events() -> None:
    clicks = DriftingWorld(users=50, items=20, events_per_s=5.0).clicks(300)
    events = draw_events(clicks, EventDelays(duplicate_share=0.2))
    settings = JoinSettings(tasks=parse_tasks("click:1;like:2"), window_ms=10**9, future_ms=10**12)
    parser, joiner, rows = EventParser(settings), ReferenceJoiner(settings), []
    for number, event in enumerate(encode_events(clicks, events, first_request=1000)):
        parsed = parser.parse(event.value, RecordPlace("events", 0, number), key=event.key, time_ms=event.time_ms)
        assert isinstance(parsed, list)
        for each in parsed:
            rows += joiner.on_impression(each) if isinstance(each, Impression) else joiner.on_action(each)
    rows += joiner.on_watermark(END_OF_TIME)
    labels = {row.key: row.labels for row in rows}
    assert len(rows) == len(labels) == len(clicks)
    for index in range(len(clicks)):
        assert labels[b"%016x" % (1000 + index)] == (clicks.click[index], clicks.like[index])


def test_wrong_delays_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"EventDelays.slow_share is 2"):
        EventDelays(slow_share=2)
    with pytest.raises(ConfigError, match=r"EventDelays.jitter_s is -1"):
        EventDelays(jitter_s=-1)
    assert LIKE != CLICK
