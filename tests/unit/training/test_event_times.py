"""Event times that are ahead of the clock: clamped, counted, and named when they are milliseconds."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from monolith.data import Batch
from monolith.testing import FakeClock
from monolith.training.event_times import EventTimes

NOW = 1_700_000_000
DAY = 86_400


def batch_at(*times: int) -> Batch:
    return Batch.from_arrays(ids={"user": [[1]] * len(times)}, event_time_s=np.array(times, np.int64))


def test_times_within_the_bound_leave_the_batch_as_it_is() -> None:
    event_times = EventTimes(DAY, FakeClock(NOW))
    batch = batch_at(0, NOW, NOW + DAY)
    assert event_times.bound(batch) is batch
    assert event_times.clamped == 0


def test_a_time_beyond_the_bound_is_clamped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    event_times = EventTimes(DAY, FakeClock(NOW))
    with caplog.at_level(logging.WARNING):
        bounded = event_times.bound(batch_at(NOW, NOW + 40 * DAY, NOW + DAY + 1))
    assert bounded.event_time_s.tolist() == [NOW, NOW + DAY, NOW + DAY]
    assert bounded.as_torch().event_time_s.tolist() == [NOW, NOW + DAY, NOW + DAY]
    assert event_times.clamped == 2
    assert f"req_time={NOW + 40 * DAY}" in caplog.text
    assert "milliseconds" not in caplog.text


def test_milliseconds_are_named(caplog: pytest.LogCaptureFixture) -> None:
    event_times = EventTimes(DAY, FakeClock(NOW))
    with caplog.at_level(logging.WARNING):
        bounded = event_times.bound(batch_at(NOW * 1000))
    assert bounded.event_time_s.tolist() == [NOW + DAY]
    assert "unit=milliseconds" in caplog.text


def test_the_log_is_throttled_and_the_count_is_not(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock(NOW)
    event_times = EventTimes(DAY, clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            event_times.bound(batch_at(NOW + 40 * DAY))
        assert len(caplog.records) == 1
        clock.sleep_s(61)
        event_times.bound(batch_at(NOW + 40 * DAY))
    assert len(caplog.records) == 2
    assert event_times.clamped == 11


def test_without_a_bound_any_time_passes() -> None:
    batch = batch_at(NOW * 1000)
    assert EventTimes(None, FakeClock(NOW)).bound(batch) is batch
