from __future__ import annotations

import logging
from itertools import islice
from pathlib import Path

import pytest

from monolith.core.errors import CheckpointMissing, ConfigError, DataError, ManifestInvalid
from monolith.testing import FakeClock
from monolith.training.eval_loop import evaluate_checkpoints, follow_checkpoints


class Training:
    """Writes a checkpoint every minute of its clock, and keeps two."""

    def __init__(self, clock: FakeClock, last_step: int = 10**9) -> None:
        self._clock = clock
        self._last_step = last_step

    def checkpoints(self) -> list[tuple[int, Path]]:
        newest = min(int(self._clock.monotonic_s() // 60) * 100, self._last_step)
        return [(step, Path(f"step-{step}")) for step in (newest, newest - 100) if step > 0]


def steps(checkpoints: object) -> list[int]:
    return [step for step, _ in checkpoints]  # type: ignore[attr-defined]


def test_every_checkpoint_until_max_steps() -> None:
    clock = FakeClock()
    training = Training(clock)
    assert steps(follow_checkpoints(training.checkpoints, max_steps=300, clock=clock)) == [100, 200, 300]
    assert clock.monotonic_s() == 180


def test_a_step_past_max_steps_ends_it_too() -> None:
    clock = FakeClock()
    assert steps(follow_checkpoints(Training(clock).checkpoints, max_steps=250, clock=clock)) == [100, 200, 300]


def test_who_is_slow_gets_the_newest() -> None:
    clock = FakeClock()
    found = []
    for step, path in follow_checkpoints(Training(clock).checkpoints, max_steps=700, clock=clock):
        found.append((step, path.name))
        clock.advance_s(150)
    assert found == [(100, "step-100"), (300, "step-300"), (600, "step-600"), (800, "step-800")]


def test_the_waiting_ends_five_hours_after_the_last_one() -> None:
    clock = FakeClock()
    training = Training(clock, last_step=100)
    followed = follow_checkpoints(training.checkpoints, max_steps=300, clock=clock)
    assert next(followed)[0] == 100
    clock.advance_s(100_000)  # the evaluation's own time does not count
    began_s = clock.monotonic_s()
    assert list(followed) == []
    assert clock.monotonic_s() - began_s == 5 * 3600


def test_a_training_that_never_saves_is_given_up() -> None:
    clock = FakeClock()
    assert list(follow_checkpoints(list, timeout_s=25, clock=clock)) == []
    assert clock.slept_s == [10, 10, 5]


def test_without_a_timeout_it_waits_for_ever() -> None:
    clock = FakeClock()
    followed = follow_checkpoints(Training(clock).checkpoints, timeout_s=None, clock=clock)
    assert steps(islice(followed, 4)) == [100, 200, 300, 400]


def test_after_a_restart_old_ones_are_left_out() -> None:
    clock = FakeClock()
    clock.advance_s(180)
    followed = follow_checkpoints(Training(clock).checkpoints, max_steps=500, after_step=300, clock=clock)
    assert steps(followed) == [400, 500]
    assert list(follow_checkpoints(Training(clock).checkpoints, max_steps=500, after_step=500, clock=clock)) == []


def test_each_checkpoint_is_evaluated_and_one_that_is_gone_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()

    def evaluate(step: int, path: Path) -> str:
        if step == 200:
            raise CheckpointMissing(f"{path} is gone")
        return path.name

    followed = follow_checkpoints(Training(clock).checkpoints, max_steps=300, clock=clock)
    with caplog.at_level(logging.WARNING, "monolith.training"):
        results = list(evaluate_checkpoints(followed, evaluate))
    assert results == [(100, "step-100"), (300, "step-300")]
    assert "step=200" in caplog.text


@pytest.mark.parametrize("error", [ManifestInvalid("a file is missing"), FileNotFoundError("a file is missing")])
def test_a_checkpoint_that_is_removed_while_it_is_read_is_passed_over(error: Exception, tmp_path: Path) -> None:
    paths = [tmp_path / f"step-{step}" for step in (1, 2)]
    for path in paths:
        path.mkdir()

    def evaluate(step: int, path: Path) -> int:
        if step == 1:
            path.rename(tmp_path / ".removed")
            raise error
        return step

    assert list(evaluate_checkpoints(enumerate(paths, 1), evaluate)) == [(2, 2)]


@pytest.mark.parametrize("error", [ManifestInvalid("a file is altered"), DataError("no label")])
def test_other_errors_of_an_evaluation_are_raised(error: Exception, tmp_path: Path) -> None:
    def evaluate(step: int, path: Path) -> int:
        raise error

    path = tmp_path if isinstance(error, ManifestInvalid) else tmp_path / "gone"
    with pytest.raises(type(error), match=str(error)):
        list(evaluate_checkpoints(iter([(1, path)]), evaluate))


def test_looking_all_the_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="poll_s is 0"):
        follow_checkpoints(list, poll_s=0)
