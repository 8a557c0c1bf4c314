from __future__ import annotations

import logging
from pathlib import Path

import pytest

from fake_run import FakeRun
from monolith.core.errors import ConfigError
from monolith.testing import FakeClock
from monolith.training.hooks import SlowStartHook


def test_the_first_worker_does_not_wait(tmp_path: Path) -> None:
    clock = FakeClock()
    SlowStartHook(0, lambda: 0).on_start(FakeRun(tmp_path, clock=clock))
    assert clock.slept_s == []


def test_a_worker_waits_for_its_step(tmp_path: Path) -> None:
    clock = FakeClock()
    # The chief takes two steps a second.
    SlowStartHook(69, lambda: int(clock.monotonic_s() * 2)).on_start(FakeRun(tmp_path, clock=clock))
    assert clock.monotonic_s() == 34.5
    assert set(clock.slept_s) == {0.5}


def test_patience_begins_when_the_training_moves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()

    def global_step() -> int:  # restoring for an hour, then stuck
        return 2 if clock.monotonic_s() >= 3600 else 1

    with caplog.at_level(logging.WARNING, "monolith.training.hooks"):
        SlowStartHook(69, global_step, max_wait_s=60).on_start(FakeRun(tmp_path, clock=clock))
    assert clock.monotonic_s() == 3660
    assert "start_step=69 global_step=2" in caplog.text


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="start_step -1"):
        SlowStartHook(-1, lambda: 0)
