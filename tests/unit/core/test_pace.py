from __future__ import annotations

import threading

import pytest

from monolith.core.pace import rest, unhurried
from monolith.testing import FakeClock


def rested(clock: FakeClock, worked_s: float) -> float:
    clock.advance_s(worked_s)
    begin_s = clock.monotonic_s()
    rest()
    return clock.monotonic_s() - begin_s


def test_who_is_unhurried_rests_longer_than_it_worked_but_not_without_end() -> None:
    clock = FakeClock()
    with unhurried(clock):
        assert rested(clock, 0.001) == pytest.approx(0.004)
        assert rested(clock, 0.002) == pytest.approx(0.008)
        assert rested(clock, 0.0) == pytest.approx(0.0)
        assert rested(clock, 60.0) == pytest.approx(0.02)


def test_nobody_else_rests() -> None:
    clock = FakeClock()
    assert rested(clock, 1.0) == 0.0
    others: list[float] = []
    with unhurried(clock):
        thread = threading.Thread(target=lambda: others.append(rested(clock, 1.0)))
        thread.start()
        thread.join()
    assert others == [0.0]
    assert rested(clock, 1.0) == 0.0


def test_what_happens_meanwhile_ends_it() -> None:
    clock = FakeClock()
    with pytest.raises(KeyError), unhurried(clock):
        raise KeyError
    assert rested(clock, 1.0) == 0.0
