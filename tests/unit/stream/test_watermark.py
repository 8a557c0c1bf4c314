"""The watermark follows its vectors M1 to M8, on a clock that the test passes."""

from __future__ import annotations

import pytest

from monolith.core.errors import ConfigError
from monolith.stream import END_OF_TIME, JoinSettings, WatermarkTracker
from monolith.stream.watermark import to_flink

SETTINGS = JoinSettings(out_of_order_ms=2, idle_ms=5, future_ms=300)
A, B = 0, 1
INGEST = 1_000


def make(*partitions: int, idle_advance: bool = True) -> WatermarkTracker:
    return WatermarkTracker(SETTINGS, partitions, clock_ms=0, idle_advance=idle_advance)


def test_m1_the_watermark_never_falls() -> None:
    tracker = make(A)
    watermarks = []
    for time in (10, 8, 12):
        assert tracker.observe(A, time, INGEST, clock_ms=0)
        watermarks.append(tracker.advance(0))
    assert watermarks == [8, 8, 10]


def test_m2_the_slowest_partition_decides() -> None:
    tracker = make(A, B)
    tracker.observe(A, 10, INGEST, clock_ms=0)
    assert tracker.advance(0) is None
    tracker.observe(B, 5, INGEST, clock_ms=0)
    assert tracker.advance(0) == 3
    tracker.observe(B, 20, INGEST, clock_ms=0)
    assert tracker.advance(0) == 8


def test_m3_and_m4_an_idle_partition_is_left_out_until_it_speaks_again() -> None:
    tracker = make(A, B)
    tracker.reach_end(B)
    tracker.observe(A, 30, INGEST, clock_ms=4)
    assert tracker.advance(4) is None
    assert tracker.advance(5) == 28
    assert tracker.count_idle(5) == 1
    tracker.observe(B, 12, INGEST, clock_ms=6)
    assert tracker.advance(6) == 28
    assert tracker.count_idle(6) == 0


def test_a_partition_with_unread_records_does_not_become_idle() -> None:
    tracker = make(A, B)
    tracker.observe(A, 30, INGEST, clock_ms=4)
    assert tracker.advance(99) is None


@pytest.mark.parametrize(("idle_advance", "expected"), [(True, 40), (False, 28)])
def test_m5_the_watermark_follows_the_clock_of_silent_live_streams(idle_advance: bool, expected: int) -> None:
    tracker = make(A, idle_advance=idle_advance)
    tracker.observe(A, 30, INGEST, clock_ms=0)
    assert tracker.advance(0) == 28
    tracker.reach_end(A)
    assert tracker.advance(12) == expected


def test_silent_partitions_without_a_record_leave_the_watermark_unset() -> None:
    tracker = make(A, B)
    tracker.reach_end(A)
    tracker.reach_end(B)
    assert tracker.advance(99) is None


def test_m6_an_event_from_the_future_moves_nothing() -> None:
    tracker = make(A)
    assert not tracker.observe(A, 401, 100, clock_ms=0)
    assert tracker.advance(0) is None
    assert tracker.observe(A, 400, 100, clock_ms=0)
    assert tracker.advance(0) == 98


def test_m7_the_ingest_time_does_not_follow_a_clock_that_jumps_back() -> None:
    tracker = make(A)
    tracker.observe(A, 90, 100, clock_ms=0)
    assert tracker.ingest_time(A, 40) == 100
    tracker.observe(A, 99, 40, clock_ms=0)
    assert tracker.advance(0) == 97


def test_m8_flink_has_a_watermark_one_millisecond_lower() -> None:
    assert to_flink(28) == 27


def test_the_end_of_the_input_closes_every_window() -> None:
    tracker = make(A)
    assert tracker.finish() == END_OF_TIME == tracker.advance(0) == tracker.watermark


def test_a_tracker_without_partitions_raises() -> None:
    with pytest.raises(ConfigError, match="partitions is empty"):
        make()
