from __future__ import annotations

import logging
from pathlib import Path

import pytest

from fake_run import FakeRun
from monolith.core.errors import ConfigError
from monolith.testing import FakeClock
from monolith.training.hooks import Hook, Run, ThroughputHook
from monolith.training.hooks.throughput import StepInterval


class StepsTake(Hook):
    """Lets time pass in each step."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = iter(seconds)

    def before_step(self, run: Run) -> None:
        assert isinstance(run.clock, FakeClock)
        run.clock.advance_s(next(self._seconds))


def test_the_first_step_counts_for_itself_and_intervals_are_of_half_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hook = ThroughputHook()
    run = FakeRun(tmp_path, [StepsTake(7, 10, 10, 5, 10, 16, 16), hook], step=100)
    hook.on_start(run)
    assert hook.run_start_elapsed_time is None
    run.take_step()
    assert hook.run_start_elapsed_time == 7
    for _ in range(3):
        run.take_step()
    assert hook.latest is None
    with caplog.at_level(logging.INFO, "monolith.training.hooks"):
        run.take_step()
    assert hook.latest == StepInterval(step=105, run_steps=4, run_steps_elapsed_time=35 / 4)
    assert "run_steps=4 run_steps_elapsed_time=8.750000" in caplog.text
    run.take_step()
    run.take_step()
    assert hook.latest == StepInterval(step=107, run_steps=2, run_steps_elapsed_time=16.0)


def test_a_second_run_starts_anew(tmp_path: Path) -> None:
    hook = ThroughputHook(every_s=1.0)
    FakeRun(tmp_path, [StepsTake(1, 1, 1), hook]).train(3)
    assert hook.latest is not None
    hook.on_start(FakeRun(tmp_path))
    assert (hook.latest, hook.run_start_elapsed_time) == (None, None)


@pytest.mark.parametrize("every_s", [0, -1, float("nan")])
def test_an_interval_must_have_a_length(every_s: float) -> None:
    with pytest.raises(ConfigError, match="every_s"):
        ThroughputHook(every_s)
