from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from monolith.core.errors import ClusterError, DataError, RpcTimeout
from monolith.testing import FakeClock
from monolith.testing.fakes.local_job_store import LocalJobStore
from monolith.training.cluster.job_pause import JobPause
from monolith.training.cluster.job_state import JobState, WorkerEntry, WorkerPhase
from monolith.training.cluster.worker_hook import ChiefHook, WaitTimeouts, WorkerHook, wait_for_chief, weights_of

TIMEOUTS = WaitTimeouts(restore_timeout_s=30.0, restore_poll_s=1.0, chief_timeout_s=60.0)


class FakeRun:
    """A run of one step at a time; each step adds to the weights."""

    def __init__(self, value: float, clock: FakeClock, step: int = 0) -> None:
        self.model = nn.Linear(2, 1)
        self.set(value)
        self.clock = clock
        self.step = step
        self.stop_reason: str | None = None
        self.is_paused = False
        self.clamped_event_times = 0

    def pause(self) -> bool:
        was, self.is_paused = self.is_paused, True
        return not was

    def resume(self) -> None:
        self.is_paused = False

    def set(self, value: float) -> None:
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.fill_(value)

    @property
    def value(self) -> float:
        values = torch.cat([weight.detach().reshape(-1) for weight in self.model.parameters()])
        assert (values == values[0]).all()
        return values[0].item()

    def stop(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or reason

    def take_step(self, hook: Any, change: float) -> None:
        self.set(self.value + change)
        self.step += 1
        hook.after_step(self, SimpleNamespace(step=self.step))


class Job:
    """A chief and a worker on the same tables."""

    def __init__(self, *, is_live: bool = False, chief_step: int = 0, **options: Any) -> None:
        self.store = LocalJobStore()
        self.clock = FakeClock()
        self.restored = 0
        self.chief_run, self.worker_run = FakeRun(1.0, self.clock, chief_step), FakeRun(-5.0, self.clock)
        self.chief = self.new_chief(is_live=is_live, **options)
        self.worker = WorkerHook(self.open_state(1), 1, **options)

    def new_chief(self, *, is_live: bool, **options: Any) -> ChiefHook:
        return ChiefHook(
            self.open_state(0), is_live=lambda: is_live, on_restored=self._restored, timeouts=TIMEOUTS, **options
        )

    def open_state(self, index: int) -> Callable[[Any], JobState]:
        def opened(run: Any) -> JobState:
            weights = sum(weight.numel() for weight in weights_of(run.model))
            return JobState(self.store, index, 2, weights)

        return opened

    def _restored(self) -> None:
        assert self.seen[0].phase != WorkerPhase.READY, "before the workers may begin"
        self.restored += 1

    @property
    def seen(self) -> list[WorkerEntry]:
        return JobState(self.store, 0, 2, 0).read()

    def start(self) -> None:
        self.chief.on_start(self.chief_run)
        self.worker.on_start(self.worker_run)


def test_the_worker_begins_with_the_chief_s_weights() -> None:
    job = Job()
    job.start()
    assert job.worker_run.value == job.chief_run.value == 1.0
    chief, worker = job.seen
    assert (chief.phase, worker.phase) == (WorkerPhase.READY, WorkerPhase.READY)
    assert chief.session == worker.session > 0
    assert job.restored == 1


def test_changes_of_both_reach_both() -> None:
    job = Job()
    job.start()
    job.chief_run.take_step(job.chief, 0.5)
    job.worker_run.take_step(job.worker, 0.25)
    assert job.worker_run.value == 1.75
    assert job.chief_run.value == 1.5, "until its next exchange"
    job.chief_run.take_step(job.chief, 0.0)
    assert job.chief_run.value == 1.75
    assert [entry.steps for entry in job.seen] == [2, 1]
    assert job.chief.global_step() == 3


def test_each_knows_how_many_steps_of_the_job_are_not_its_own() -> None:
    job = Job(chief_step=5)
    job.start()
    assert (job.chief.steps_beside, job.worker.steps_beside) == (0, 5)
    job.worker_run.take_step(job.worker, 0.0)
    job.worker_run.take_step(job.worker, 0.0)
    job.chief_run.take_step(job.chief, 0.0)
    assert job.chief.steps_beside == 2
    again = FakeRun(0.0, job.clock)  # the worker was killed, and counts its own steps from 0
    job.worker = WorkerHook(job.open_state(1), 1)
    job.worker.on_start(again)
    assert job.worker.steps_beside == 2 + 6


def test_weights_are_exchanged_as_often_as_asked() -> None:
    job = Job(exchange_steps=2)
    job.start()
    job.worker_run.take_step(job.worker, 1.0)
    assert job.seen[1].steps == 0
    job.worker_run.take_step(job.worker, 1.0)
    assert job.seen[1].steps == 2
    job.worker_run.take_step(job.worker, 1.0)
    job.worker.before_end(job.worker_run)  # what was not exchanged yet is not lost
    job.chief_run.take_step(job.chief, 0.0)
    job.chief_run.take_step(job.chief, 0.0)
    assert job.chief_run.value == 4.0


def test_all_stop_when_they_have_taken_the_steps_together() -> None:
    job = Job(max_steps=3)
    job.start()
    job.chief_run.take_step(job.chief, 0.0)
    job.worker_run.take_step(job.worker, 0.0)
    assert job.chief_run.stop_reason is job.worker_run.stop_reason is None
    job.worker_run.take_step(job.worker, 0.0)
    assert job.worker_run.stop_reason == "all workers together have taken 3 steps"
    job.chief_run.take_step(job.chief, 0.0)
    assert job.chief_run.stop_reason == "all workers together have taken 4 steps"


def test_a_chief_that_is_stopped_stops_the_others() -> None:
    job = Job()
    job.start()
    job.chief_run.stop("the process was sent SIGTERM")

    def worker_obeys(seconds: float) -> None:
        job.worker_run.take_step(job.worker, 1.0)
        assert job.worker_run.stop_reason == "the chief ends the job"
        job.worker.before_end(job.worker_run)

    job.clock.sleep_s = worker_obeys  # type: ignore[method-assign]
    job.chief.before_end(job.chief_run)
    assert job.chief_run.value == 2.0, "the last step of the worker is in the checkpoint"
    assert [entry.phase for entry in job.seen] == [WorkerPhase.STOPPING, WorkerPhase.DONE]


def test_the_last_checkpoint_has_the_weights_of_all_workers() -> None:
    job = Job()
    job.start()
    job.worker_run.take_step(job.worker, 1.0)
    job.worker.before_end(job.worker_run)
    job.chief.before_end(job.chief_run)
    assert job.chief_run.value == 2.0
    assert [entry.phase for entry in job.seen] == [WorkerPhase.DONE, WorkerPhase.DONE]
    assert job.clock.slept_s == [], "nobody to wait for"


def test_the_chief_does_not_wait_for_ever_for_a_dead_worker(caplog: pytest.LogCaptureFixture) -> None:
    job = Job()
    job.start()
    job.chief_run.take_step(job.chief, 0.0)
    job.chief.before_end(job.chief_run)
    assert sum(job.clock.slept_s) == pytest.approx(60.0, abs=0.5)
    assert "job ended without workers missing=[1]" in caplog.text


def test_a_job_that_is_stopped_waits_less() -> None:
    job = Job()
    job.start()
    job.chief_run.stop("the process was sent SIGTERM")
    job.chief.before_end(job.chief_run)
    assert sum(job.clock.slept_s) == pytest.approx(20.0, abs=0.5)


def test_a_worker_that_moves_is_waited_for_longer() -> None:
    job = Job()
    job.start()
    moves = iter(range(3))

    def sleep(seconds: float) -> None:
        job.clock.advance_s(50)
        if next(moves, None) is None:
            job.worker.before_end(job.worker_run)
        else:
            job.worker_run.take_step(job.worker, 0.0)

    job.clock.sleep_s = sleep  # type: ignore[method-assign]
    job.chief.before_end(job.chief_run)
    assert job.seen[1].phase == WorkerPhase.DONE
    assert job.clock.monotonic_s() == 200


def test_a_restarted_chief_loads_the_weights_of_a_live_training() -> None:
    job = Job()
    job.start()
    job.worker_run.take_step(job.worker, 1.0)
    session = job.seen[0].session
    anew = FakeRun(0.0, job.clock, step=7)
    job.new_chief(is_live=True).on_start(anew)
    assert anew.value == 2.0
    assert job.seen[0] == WorkerEntry(WorkerPhase.READY, session, 7)
    assert job.restored == 1


def test_a_chief_of_a_new_session_replaces_the_weights_on_the_servers() -> None:
    job = Job()
    job.start()
    anew = FakeRun(0.25, job.clock)
    job.restored = -1
    JobState(job.store, 0, 2, 0).write(WorkerEntry(WorkerPhase.DONE, 1, 5))
    job.new_chief(is_live=False).on_start(anew)
    assert anew.value == 0.25
    assert job.restored == 0
    job.worker_run.take_step(job.worker, 0.0)
    job.worker_run.take_step(job.worker, 0.0)
    assert job.seen[1].session == job.seen[0].session, "a worker that goes on is part of the new session"


def test_a_restarted_worker_continues_its_step_count() -> None:
    job = Job()
    job.start()
    for _ in range(3):
        job.worker_run.take_step(job.worker, 1.0)
    again, run = WorkerHook(job.open_state(1), 1), FakeRun(9.0, job.clock)
    again.on_start(run)
    assert run.value == 4.0
    run.take_step(again, 1.0)
    assert job.seen[1].steps == 4


def test_a_worker_waits_for_the_chief_and_not_for_ever() -> None:
    store, clock = LocalJobStore(), FakeClock()
    worker = JobState(store, 1, 2, 0)
    with pytest.raises(RpcTimeout, match=r"waiting for the chief to restore: worker 1 waited 30 s; .* raise restore_"):
        wait_for_chief(worker, 1, TIMEOUTS, clock)
    assert clock.slept_s == [1.0] * 30
    JobState(store, 0, 2, 0).write(WorkerEntry(WorkerPhase.READY, 1, 0))
    wait_for_chief(worker, 1, TIMEOUTS, clock)


def test_the_entry_of_the_chief_is_ignored_before_a_worker_has_trained_on_the_servers() -> None:
    store, clock = LocalJobStore(), FakeClock()
    JobState(store, 0, 2, 0).write(WorkerEntry(WorkerPhase.READY, 1, 0))  # of an earlier job, and recovered
    answers = iter([False, False, True])
    wait_for_chief(JobState(store, 1, 2, 0), 1, TIMEOUTS, clock, lambda: next(answers))
    assert clock.slept_s == [1.0, 1.0]


def test_a_job_whose_workers_got_nothing_is_an_error() -> None:
    job = Job()
    job.start()
    job.worker.before_end(job.worker_run)
    with pytest.raises(DataError, match="the data gave no batch to any worker; check the patterns and filters"):
        job.chief.before_end(job.chief_run)


# --- the chief steers all workers ---


def pause_of(job: Job) -> JobPause:
    pause = JobPause(job.open_state(0), lambda: job.chief.session)
    pause.on_start(job.chief_run)
    return pause


def states(pause: JobPause) -> list[tuple[int, str]]:
    return [(worker.step, worker.state) for worker in pause.workers()]


def test_a_worker_is_paused_until_the_job_resumes() -> None:
    job = Job()
    job.start()
    pause = pause_of(job)
    assert states(pause) == [(0, "training"), (0, "training")]
    assert pause.pause()
    assert not pause.pause(), "a pause is active"
    assert job.chief_run.is_paused

    def look(seconds: float) -> None:
        assert states(pause) == [(0, "held"), (1, "held")]
        assert pause.status().blocked == (0, 1)
        pause.resume()

    job.clock.sleep_s = look  # type: ignore[method-assign]
    job.worker_run.take_step(job.worker, 1.0)
    assert not job.chief_run.is_paused
    assert pause.status().unblocked == (0, 1)
    assert states(pause) == [(0, "training"), (1, "training")]


@pytest.mark.parametrize("end", ["its own signal", "the chief's end"])
def test_a_paused_worker_can_be_stopped(end: str) -> None:
    job = Job()
    job.start()
    pause_of(job).pause()

    def stop(seconds: float) -> None:
        if end == "its own signal":
            job.worker_run.stop("the process was sent SIGTERM")
        else:
            JobState(job.store, 0, 2, 0).write(WorkerEntry(WorkerPhase.STOPPING, job.chief.session, 0))

    job.clock.sleep_s = stop  # type: ignore[method-assign]
    job.worker_run.take_step(job.worker, 1.0)
    assert job.worker_run.stop_reason is not None


def test_a_chief_that_comes_back_is_held_too_and_a_new_start_is_not() -> None:
    job = Job()
    job.start()
    pause_of(job).pause()
    anew = FakeRun(0.0, job.clock)
    job.new_chief(is_live=True).on_start(anew)
    assert anew.is_paused
    other = FakeRun(0.0, job.clock)
    job.new_chief(is_live=False).on_start(other)
    assert not other.is_paused
    job.worker_run.take_step(job.worker, 1.0)  # would wait for ever
    assert job.seen[1].phase == WorkerPhase.READY


def test_a_worker_that_was_not_seen_is_not_there() -> None:
    job = Job()
    job.chief.on_start(job.chief_run)
    pause = pause_of(job)
    assert states(pause) == [(0, "training"), (0, "not there")]
    job.worker.on_start(job.worker_run)
    job.worker.before_end(job.worker_run)
    assert states(pause)[1] == (0, "done")
    assert WorkerPhase.PAUSED not in {entry.phase for entry in job.seen}


def test_a_worker_learns_while_it_waits_for_data_that_the_job_is_over() -> None:
    job = Job(max_steps=2)
    job.start()
    assert not job.worker.is_over()
    job.chief_run.take_step(job.chief, 0.0)
    job.chief_run.take_step(job.chief, 0.0)
    assert job.worker.is_over()
    assert job.worker_run.stop_reason == "all workers together have taken 2 steps"


def test_a_worker_notices_servers_that_were_rolled_back() -> None:
    def taken_back() -> None:
        raise ClusterError("back")

    job = Job()
    job.start()
    worker = WorkerHook(job.open_state(1), 1, on_new_session=taken_back)
    worker.on_start(job.worker_run)
    job.worker_run.take_step(worker, 1.0)
    job.new_chief(is_live=False).on_start(FakeRun(0.0, job.clock))
    with pytest.raises(ClusterError, match="back"):
        job.worker_run.take_step(worker, 1.0)
