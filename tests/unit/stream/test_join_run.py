"""A join run reports each group that fails, for every class of error."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from monolith.core.errors import DataError
from monolith.stream.runtime.job import JoinRun


class FailingGroup:
    """A group whose first step raises."""

    is_stopping = False

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.is_released = False

    def start(self) -> None: ...

    def step(self, wait_s: float) -> bool:
        raise self.error

    def abandon(self) -> None:
        self.is_released = True


@pytest.mark.parametrize("error", [DataError("input ends"), MemoryError("no memory"), KeyError("offset")])
def test_a_group_that_raises_any_error_is_a_failure_of_the_run(error: Exception) -> None:
    group: Any = FailingGroup(error)
    run = JoinRun({0: group}.__getitem__, [0], until_end=True)
    run.start()
    run.wait(10)
    assert run.is_done()
    assert run.failures == {0: error}
    assert run.running == set()
    assert group.is_released


def test_a_group_that_does_not_end_in_time_is_a_failure_of_the_run() -> None:
    is_released = threading.Event()

    class WaitingGroup(FailingGroup):
        def start(self) -> None:
            is_released.wait(10)

    group: Any = WaitingGroup(DataError("input ends"))
    run = JoinRun({0: group}.__getitem__, [0], until_end=True)
    run.start()
    run.stop()
    run.wait(0.01)
    assert "group 0 runs 0.01 s after the stop" in str(run.failures[0])
    is_released.set()
    run.wait(10)


def test_a_group_that_cannot_be_made_is_a_failure_of_the_run() -> None:
    run = JoinRun(dict[int, Any]().__getitem__, [3], until_end=True)
    run.start()
    run.wait(10)
    assert isinstance(run.failures[3], KeyError)


def test_a_group_that_fails_again_while_it_is_released_does_not_run_any_more() -> None:
    class StuckGroup(FailingGroup):
        def abandon(self) -> None:
            super().abandon()
            raise DataError("the disk has failed")

    error = DataError("input ends")
    group: Any = StuckGroup(error)
    run = JoinRun({0: group}.__getitem__, [0], until_end=True)
    run.start()
    run.wait(10)
    assert (run.failures, run.running, group.is_released) == ({0: error}, set(), True)


def test_a_stop_before_a_group_is_made_reaches_the_group() -> None:
    group: Any = FailingGroup(DataError("input ends"))
    group.close = lambda: None

    def make_group(partition: int) -> Any:
        run.stop()
        return group

    run = JoinRun(make_group, [0], until_end=True)
    run.start()
    run.wait(10)
    assert group.is_stopping
    assert not run.failures
