"""Background work sleeps between its units, and only inside ``throttled``."""

from __future__ import annotations

import threading

import pytest

from monolith.core.throttle import throttled, yield_gil
from monolith.testing import FakeClock


def slept_s(clock: FakeClock, worked_s: float) -> float:
    clock.advance_s(worked_s)
    begin_s = clock.monotonic_s()
    yield_gil()
    return clock.monotonic_s() - begin_s


def test_a_throttled_thread_sleeps_longer_than_it_worked_up_to_a_limit() -> None:
    clock = FakeClock()
    with throttled(clock):
        assert slept_s(clock, 0.001) == pytest.approx(0.004)
        assert slept_s(clock, 0.002) == pytest.approx(0.008)
        assert slept_s(clock, 0.0) == pytest.approx(0.0)
        assert slept_s(clock, 60.0) == pytest.approx(0.02)


def test_other_threads_do_not_sleep() -> None:
    clock = FakeClock()
    assert slept_s(clock, 1.0) == 0.0
    others: list[float] = []
    with throttled(clock):
        thread = threading.Thread(target=lambda: others.append(slept_s(clock, 1.0)))
        thread.start()
        thread.join(60)
    assert others == [0.0]
    assert slept_s(clock, 1.0) == 0.0


def test_an_exception_ends_the_throttle() -> None:
    clock = FakeClock()
    with pytest.raises(KeyError), throttled(clock):
        raise KeyError
    assert slept_s(clock, 1.0) == 0.0
