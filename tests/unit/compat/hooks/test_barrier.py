from __future__ import annotations

import threading
from pathlib import Path

import pytest

from fake_run import FakeRun
from monolith.core.errors import ConfigError
from monolith.training.control import BlockStatus
from monolith.training.hooks import Barrier, BarrierHook
from monolith.training.hooks.base import Hook
from monolith.training.run import Run

MANY = 10**9


class Workers:
    """Worker threads that train until they are stopped."""

    def __init__(self, barrier: Barrier, folder: Path) -> None:
        self.actions: list[tuple[int, str]] = []
        self.runs = []
        for index in range(barrier.workers):

            def tell(action: str, index: int = index) -> None:
                self.actions.append((index, action))

            self.runs.append(FakeRun(folder, [BarrierHook(barrier, index, [tell])]))
        self.threads = [threading.Thread(target=run.train, args=(MANY,)) for run in self.runs]

    def __enter__(self) -> Workers:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        for run in self.runs:
            run.stop("the test is over")
            run.resume()
        for thread in self.threads:
            thread.join()


def test_a_worker_finishes_its_step_pauses_and_resumes_after_removal(tmp_path: Path) -> None:
    barrier = Barrier(1)
    actions: list[str] = []
    run = FakeRun(tmp_path, [BarrierHook(barrier, 0, [actions.append])])
    run.take_step()
    assert barrier.place("Save")
    thread = threading.Thread(target=run.take_step)
    thread.start()
    assert barrier.wait_until_blocked(20.0) == BlockStatus(blocked=(0,), unblocked=())
    run.wait(lambda: run.is_paused)
    assert (run.step, actions) == (2, ["Save"])
    barrier.remove()
    thread.join()
    assert barrier.status() == BlockStatus(blocked=(), unblocked=(0,))
    run.take_step()
    assert (run.step, actions) == (3, ["Save"])


def test_a_second_placement_changes_nothing() -> None:
    barrier = Barrier(1)
    assert barrier.place("first")
    assert not barrier.place("second")
    barrier.remove()
    assert barrier.place("second")


def test_several_workers_are_held_and_released_again_and_again(tmp_path: Path) -> None:
    barrier = Barrier(3)
    with Workers(barrier, tmp_path) as workers:
        for generation in range(20):
            assert barrier.place(str(generation))
            assert barrier.wait_until_blocked(20.0).blocked == (0, 1, 2)
            for run in workers.runs:
                run.wait(lambda run=run: run.is_paused)
            steps = [run.step for run in workers.runs]
            assert steps == [run.step for run in workers.runs]
            barrier.remove()
    assert sorted(workers.actions) == sorted((index, str(n)) for index in range(3) for n in range(20))


def test_a_placement_right_after_a_removal_lets_each_worker_take_a_step_between(tmp_path: Path) -> None:
    barrier = Barrier(2)
    with Workers(barrier, tmp_path) as workers:
        barrier.place("one")
        barrier.wait_until_blocked(20.0)
        before = [run.step for run in workers.runs]
        barrier.remove()
        barrier.place("two")
        assert barrier.wait_until_blocked(20.0).blocked == (0, 1)
        assert [run.step for run in workers.runs] == [step + 1 for step in before]
        barrier.remove()


def test_a_placement_that_is_removed_while_callbacks_run_pauses_no_worker(tmp_path: Path) -> None:
    barrier = Barrier(1)
    run = FakeRun(tmp_path, [BarrierHook(barrier, 0, [lambda action: barrier.remove()])])
    barrier.place()
    run.take_step()
    assert not run.is_paused
    assert barrier.status().blocked == ()


def test_a_held_worker_still_saves(tmp_path: Path) -> None:
    barrier = Barrier(1)
    with Workers(barrier, tmp_path) as workers:
        barrier.place()
        barrier.wait_until_blocked(20.0)
        workers.runs[0].save("by hand")
        assert workers.runs[0].saved == [(workers.runs[0].step, "by hand")]
        barrier.remove()


def test_a_run_that_another_hook_paused_is_not_resumed_by_the_barrier(tmp_path: Path) -> None:
    barrier = Barrier(1)

    class PausedByAnother(Hook):
        def before_step(self, run: Run) -> None:
            run.pause()

    run = FakeRun(tmp_path, [PausedByAnother(), BarrierHook(barrier)])
    barrier.place()
    thread = threading.Thread(target=run.take_step)
    thread.start()
    run.wait(lambda: run.is_paused)
    barrier.remove()
    assert run.is_paused
    run.resume()
    thread.join()


def test_a_worker_that_ended_is_not_blocked(tmp_path: Path) -> None:
    barrier = Barrier(2)
    run = FakeRun(tmp_path, [BarrierHook(barrier, 1)])
    barrier.place()
    thread = threading.Thread(target=run.train, args=(MANY,))
    thread.start()
    run.wait(lambda: run.is_paused)
    assert barrier.wait_until_blocked(0.0) == BlockStatus(blocked=(1,), unblocked=(0,))
    run.stop("enough")
    thread.join()
    assert barrier.status().blocked == ()


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="workers is 0"):
        Barrier(0)
    with pytest.raises(ConfigError, match="index is 2"):
        BarrierHook(Barrier(2), 2)
