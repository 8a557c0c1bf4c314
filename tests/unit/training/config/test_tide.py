from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.core.config_sections import build_section
from monolith.core.errors import ConfigError
from monolith.training.config import CheckpointConfig, SaveTimer, TideWindow, is_available

MIDNIGHT = datetime(2024, 5, 1, tzinfo=UTC)
NIGHT = TideWindow(start_hour=22, end_hour=6)


def at(hour: int, minute: int = 0, second: int = 0) -> float:
    return (MIDNIGHT + timedelta(hours=hour, minutes=minute, seconds=second)).timestamp()


def test_a_window_has_its_start_and_not_its_end() -> None:
    window = TideWindow(start_hour=9, start_minute=30, end_hour=17)
    assert [is_available(window, at(*moment)) for moment in [(9, 29), (9, 30), (16, 59), (17, 0)]] == [
        False,
        True,
        True,
        False,
    ]


def test_a_window_may_span_midnight() -> None:
    hours = [hour for hour in range(24) if is_available(NIGHT, at(hour))]
    assert hours == [0, 1, 2, 3, 4, 5, 22, 23]


def test_a_window_that_ends_where_it_starts_is_the_whole_day() -> None:
    window = TideWindow(start_hour=8, end_hour=8)
    assert all(is_available(window, at(hour)) for hour in range(24))


@given(st.integers(0, 1439), st.integers(0, 1439), st.integers(0, 1439))
def test_a_window_and_the_reverse_one_share_the_day(start: int, end: int, now: int) -> None:
    window = TideWindow(start_hour=start // 60, start_minute=start % 60, end_hour=end // 60, end_minute=end % 60)
    reverse = TideWindow(start_hour=end // 60, start_minute=end % 60, end_hour=start // 60, end_minute=start % 60)
    moment = at(0, now)
    if start == end:
        assert is_available(window, moment)
    else:
        assert is_available(window, moment) != is_available(reverse, moment)


def test_a_moment_of_another_zone_is_taken_to_utc() -> None:
    tokyo = timezone(timedelta(hours=9))
    assert is_available(NIGHT, datetime(2024, 5, 1, 8, tzinfo=tokyo))  # 23:00 UTC
    assert not is_available(NIGHT, datetime(2024, 5, 1, 23, tzinfo=tokyo))


def test_a_moment_without_a_zone_is_refused() -> None:
    with pytest.raises(ConfigError, match="no zone; give unix seconds"):
        is_available(NIGHT, datetime(2024, 5, 1, 8))


def test_a_window_refuses_hours_that_do_not_exist() -> None:
    with pytest.raises(ConfigError, match=r"TideWindow\.end_hour is 24; give a whole number from 0 to 23"):
        TideWindow(start_hour=22, end_hour=24)


def test_the_window_of_a_configuration() -> None:
    assert TideWindow.from_config(CheckpointConfig()) is None
    config = build_section(CheckpointConfig, tide_start_hour=22, tide_end_hour=6, tide_end_minute=15)
    assert TideWindow.from_config(config) == TideWindow(start_hour=22, end_hour=6, end_minute=15)


def test_the_state_that_a_run_begins_with_is_not_due() -> None:
    timer = SaveTimer(every_s=1)
    assert not timer.is_due(500, 1000.0)
    assert not timer.is_due(500, 2000.0)
    assert timer.is_due(501, 2000.0)


def test_steps_are_counted_from_where_the_run_began() -> None:
    timer = SaveTimer(every_steps=10)
    timer.start(25, 0.0)
    assert [step for step in range(26, 40) if timer.is_due(step, 0.0)] == [35, 36, 37, 38, 39]


def test_the_same_step_is_never_due_twice() -> None:
    timer = SaveTimer(every_s=10)
    timer.start(0, 0.0)
    timer.mark_saved(7, 5.0)
    assert not timer.is_due(7, 100.0)
    assert timer.is_due(8, 100.0)


def test_a_save_that_was_asked_for_counts_as_the_last_one() -> None:
    timer = SaveTimer(every_steps=10)
    timer.start(0, 0.0)
    timer.mark_saved(9, 0.0)
    assert not timer.is_due(10, 0.0)
    assert timer.is_due(19, 0.0)


def test_with_no_period_nothing_is_due() -> None:
    timer = SaveTimer()
    timer.start(0, 0.0)
    assert not timer.is_due(10**9, 10.0**9)


def test_outside_the_window_only_its_own_period_counts() -> None:
    timer = SaveTimer(every_steps=1, tide=NIGHT, tide_save_s=300)
    timer.start(0, at(12))
    assert not timer.is_due(1, at(12, 4))
    assert timer.is_due(2, at(12, 5))
    timer.mark_saved(2, at(21, 59))
    assert timer.is_due(3, at(22))


def test_a_window_without_a_save_period_changes_nothing() -> None:
    timer = SaveTimer(every_steps=1, tide=NIGHT)
    timer.start(0, at(12))
    assert timer.is_due(1, at(12))


def test_a_clock_that_is_set_back_delays_a_save_by_one_period_at_most() -> None:
    timer = SaveTimer(every_s=10)
    timer.start(0, 5000.0)
    assert not timer.is_due(1, 1000.0)
    assert not timer.is_due(2, 1009.0)
    assert timer.is_due(3, 1010.0)


def test_two_periods_are_refused() -> None:
    with pytest.raises(ConfigError, match="every_s is 1 and every_steps is 2"):
        SaveTimer(every_s=1, every_steps=2)


def test_the_timers_of_a_configuration() -> None:
    config = build_section(
        CheckpointConfig,
        save_checkpoints_steps=100,
        dense_only_save_checkpoints_secs=60,
        tide_start_hour=22,
        tide_end_hour=6,
        tide_save_secs=5,
    )
    whole, dense = SaveTimer.from_config(config), SaveTimer.dense_only(config)
    whole.start(0, at(12))
    dense.start(0, at(12))
    assert whole.is_due(1, at(12, 0, 5))
    assert not dense.is_due(1, at(12, 0, 5))
    assert dense.is_due(100, at(12, 1))
