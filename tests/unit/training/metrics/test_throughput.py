from __future__ import annotations

import math

import pytest

from monolith.core.errors import ConfigError
from monolith.testing import FakeClock
from monolith.training.metrics import Throughput


def test_rates_look_back_over_the_window_only() -> None:
    clock = FakeClock()
    throughput = Throughput(clock, window_s=10)
    for _ in range(20):
        clock.advance_s(1)
        throughput.add(samples=100, ids=1000)
    for _ in range(40):
        clock.advance_s(0.25)
        throughput.add(samples=50, ids=100)
    rates = throughput.rates()
    assert (rates.steps_per_s, rates.samples_per_s, rates.ids_per_s) == (4, 200, 400)
    assert rates.seconds_per_step == 0.25
    assert throughput.overall().samples_per_s == pytest.approx(4000 / 30)
    assert (throughput.steps, throughput.samples, throughput.ids) == (60, 4000, 24_000)


def test_the_window_is_never_shorter_than_the_last_step() -> None:
    clock = FakeClock()
    throughput = Throughput(clock, window_s=10)
    clock.advance_s(100)
    throughput.add(samples=100, ids=0)
    clock.advance_s(50)
    throughput.add(samples=100, ids=0)
    assert throughput.rates().samples_per_s == 2


def test_very_short_steps_do_not_pile_up() -> None:
    clock = FakeClock()
    throughput = Throughput(clock, window_s=1)
    for _ in range(20_000):
        clock.advance_s(0.0001)
        throughput.add(samples=1, ids=1)
    assert len(throughput._marks) <= 102
    assert throughput.rates().steps_per_s == pytest.approx(10_000)


def test_without_time_there_is_no_rate() -> None:
    throughput = Throughput(FakeClock())
    assert math.isnan(throughput.rates().samples_per_s)
    assert math.isnan(throughput.rates().seconds_per_step)
    throughput.add(samples=1, ids=1)
    assert math.isnan(throughput.overall().ids_per_s)


def test_a_window_has_a_length() -> None:
    with pytest.raises(ConfigError, match="window_s must be positive and finite, got 0"):
        Throughput(FakeClock(), window_s=0)
