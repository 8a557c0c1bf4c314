"""One suite for clocks, run against the real clock and the fake."""

from __future__ import annotations

import math

import pytest

from monolith.core.clock import Clock, Deadline, SystemClock
from monolith.core.errors import ConfigError
from monolith.testing import FakeClock


@pytest.fixture(params=[SystemClock, FakeClock], ids=["system", "fake"])
def clock(request: pytest.FixtureRequest) -> Clock:
    made: Clock = request.param()
    return made


def test_it_satisfies_the_protocol(clock: Clock) -> None:
    assert isinstance(clock, Clock)


def test_the_wall_clock_is_in_unix_seconds_of_this_century(clock: Clock) -> None:
    assert 1_600_000_000 < clock.now_s() < 4_000_000_000


def test_the_monotonic_clock_never_goes_back(clock: Clock) -> None:
    times = [clock.monotonic_s() for _ in range(100)]
    assert times == sorted(times)


def test_a_sleep_advances_the_monotonic_clock_by_at_least_as_much(clock: Clock) -> None:
    before = clock.monotonic_s()
    clock.sleep_s(0.001)
    assert clock.monotonic_s() - before >= 0.001


def test_a_sleep_of_nothing_is_allowed(clock: Clock) -> None:
    clock.sleep_s(0)


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_a_sleep_of_no_real_length_is_refused(clock: Clock, seconds: float) -> None:
    with pytest.raises(ConfigError, match="duration"):
        clock.sleep_s(seconds)


def test_a_deadline_passes_when_its_time_is_over(clock: Clock) -> None:
    deadline = Deadline(clock, 0.001)
    assert deadline.remaining_s() <= 0.001
    clock.sleep_s(0.002)
    assert deadline.is_past
    assert deadline.remaining_s() == 0


def test_a_deadline_without_limit_never_passes(clock: Clock) -> None:
    deadline = Deadline(clock, None)
    assert not deadline.is_past
    assert deadline.remaining_s() == math.inf
