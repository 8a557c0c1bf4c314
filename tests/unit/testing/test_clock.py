from __future__ import annotations

from monolith.testing import FakeClock


def test_time_is_constant_until_a_test_moves_it() -> None:
    clock = FakeClock(now_s=100.0)
    assert (clock.now_s(), clock.monotonic_s()) == (100.0, 0.0)
    clock.advance_s(5)
    assert (clock.now_s(), clock.monotonic_s()) == (105.0, 5.0)
    assert clock.slept_s == []


def test_sleeps_are_remembered_in_order() -> None:
    clock = FakeClock()
    clock.sleep_s(1)
    clock.sleep_s(2)
    assert clock.slept_s == [1, 2]


def test_the_wall_clock_may_jump_while_the_monotonic_one_does_not() -> None:
    clock = FakeClock(now_s=100.0)
    clock.set_now_s(50.0)
    assert (clock.now_s(), clock.monotonic_s()) == (50.0, 0.0)
