"""The queue: batches, waiting, refusals and skipped requests."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from monolith.core.clock import SystemClock
from monolith.core.errors import ConfigError, ModelNotReady, Overloaded, RpcTimeout
from monolith.serving.requests.batching import BatchQueue, BatchSettings, QueuedRequest, parse_batching_parameters
from monolith.serving.requests.request_deadline import request_deadline_s
from monolith.testing.eventually import eventually


class Addition:
    """A work that answers its rows plus one, and records the size of its batch."""

    batches: list[int]

    def __init__(self, log: list[int], key: Any = "k", rows: int = 1, gate: threading.Event | None = None) -> None:
        self.log, self.key, self.rows, self.gate = log, key, rows, gate
        self.nbytes = rows * 10
        self.begun = threading.Event()

    def do(self, works: Sequence[Addition]) -> list[Any]:
        for work in works:
            work.begun.set()
        if self.gate is not None:
            assert self.gate.wait(60)
        self.log.append(len(works))
        return [ValueError("bad") if work.rows == 13 else work.rows + 1 for work in works]


class Waiter:
    def __init__(self) -> None:
        self.ended = threading.Event()
        self.job: QueuedRequest | None = None

    def __call__(self, job: QueuedRequest) -> None:
        self.job = job
        self.ended.set()

    def answer(self) -> Any:
        assert self.ended.wait(60)
        assert self.job is not None
        if self.job.error is not None:
            raise self.job.error
        return self.job.answer


@pytest.fixture
def queue() -> Iterator[Callable[..., BatchQueue]]:
    with ExitStack() as stack:

        def make(**settings: Any) -> BatchQueue:
            made = BatchQueue(BatchSettings(**{"threads": 1, **settings}))
            stack.callback(made.close)
            return made

        yield make


def submitted(queue: BatchQueue, work: Addition, **job: Any) -> Waiter:
    waiter = Waiter()
    queue.submit(QueuedRequest(work, waiter, **job))
    return waiter


def test_requests_that_wait_are_computed_together_by_key_up_to_the_rows(queue: Callable[..., BatchQueue]) -> None:
    made, log, gate = queue(max_rows=4), [], threading.Event()
    first = Addition(log, gate=gate)
    waiters = [submitted(made, first)]
    assert first.begun.wait(60)
    waiters += [submitted(made, Addition(log, key)) for key in ("a", "b", "a", "a", "a", "b", None, None, "a")]
    gate.set()
    assert [waiter.answer() for waiter in waiters] == [2] * 10
    assert log == [1, 4, 2, 1, 1, 1]


def test_a_request_larger_than_a_batch_is_computed_alone(queue: Callable[..., BatchQueue]) -> None:
    log: list[int] = []
    assert submitted(queue(max_rows=4), Addition(log, rows=100)).answer() == 101


def test_a_batch_waits_for_company_only_within_its_budget(queue: Callable[..., BatchQueue]) -> None:
    log: list[int] = []
    patient = queue(max_rows=3, wait_s=10.0)
    waiters = [submitted(patient, Addition(log)) for _ in range(3)]
    assert [waiter.answer() for waiter in waiters] == [2, 2, 2]  # full, so without the wait of ten seconds
    assert log == [3]
    assert submitted(queue(max_rows=3, wait_s=0.01), Addition(log)).answer() == 2


def test_a_queue_past_its_bounds_refuses_immediately(queue: Callable[..., BatchQueue]) -> None:
    made, log, gate = queue(max_queued_rows=10, max_queued_bytes=90), [], threading.Event()
    first = Addition(log, gate=gate)
    running = submitted(made, first)
    assert first.begun.wait(60)
    waiting = submitted(made, Addition(log, rows=8))
    with pytest.raises(Overloaded, match="8 rows, 80 bytes"):
        submitted(made, Addition(log, rows=3))
    with pytest.raises(Overloaded):
        submitted(made, Addition(log, rows=2))  # its bytes are too many
    gate.set()
    assert (running.answer(), waiting.answer()) == (2, 9)
    assert submitted(made, Addition(log, rows=50)).answer() == 51  # alone in the queue, any size is taken


def test_a_request_that_is_late_or_whose_client_left_is_not_computed(queue: Callable[..., BatchQueue]) -> None:
    made, log, gate = queue(), [], threading.Event()
    first = Addition(log, gate=gate)
    running = submitted(made, first)
    assert first.begun.wait(60)
    late = submitted(made, Addition(log), deadline_s=0.0)
    gone = submitted(made, Addition(log), is_wanted=lambda: False)
    here = submitted(made, Addition(log), is_wanted=lambda: True)
    gate.set()
    assert (running.answer(), here.answer()) == (2, 2)
    for waiter in (late, gone):
        with pytest.raises(RpcTimeout, match="deadline"):
            waiter.answer()
    assert log == [1, 1]


def test_the_error_of_one_is_not_that_of_the_others(queue: Callable[..., BatchQueue]) -> None:
    made, log, gate = queue(), [], threading.Event()
    first = Addition(log, gate=gate)
    submitted(made, first)
    assert first.begun.wait(60)
    good, bad = submitted(made, Addition(log)), submitted(made, Addition(log, rows=13))
    gate.set()
    assert good.answer() == 2
    with pytest.raises(ValueError, match="bad"):
        bad.answer()


def test_a_caller_that_fails_does_not_end_the_thread(
    queue: Callable[..., BatchQueue], caplog: pytest.LogCaptureFixture
) -> None:
    made, log = queue(), []

    def fail(job: QueuedRequest) -> None:
        raise RuntimeError("gone")

    made.submit(QueuedRequest(Addition(log), fail))
    assert submitted(made, Addition(log)).answer() == 2
    assert "callback failed" in caplog.text


def test_an_idle_thread_keeps_no_request(queue: Callable[..., BatchQueue]) -> None:
    """A request refers to its version, which may be unloaded long before the next request."""
    made, work = queue(), Addition([])
    kept = weakref.ref(work)
    assert submitted(made, work).answer() == 2
    del work

    def is_freed() -> bool:
        gc.collect()
        return kept() is None

    eventually(is_freed)


def test_a_draining_queue_answers_its_requests_and_refuses_new_ones(queue: Callable[..., BatchQueue]) -> None:
    made, log, gate = queue(), [], threading.Event()
    first = Addition(log, gate=gate)
    waiters = [submitted(made, first)]
    assert first.begun.wait(60)
    waiters += [submitted(made, Addition(log, key=index)) for index in range(5)]
    assert not made.drain(0.01)
    with pytest.raises(ModelNotReady, match="stopping"):
        submitted(made, Addition(log))
    gate.set()
    assert made.drain(60)
    assert [waiter.answer() for waiter in waiters] == [2] * 6


def test_requests_left_in_a_closed_queue_fail() -> None:
    made, log, gate = BatchQueue(BatchSettings(threads=1)), [], threading.Event()
    first = Addition(log, gate=gate)
    running = submitted(made, first)
    assert first.begun.wait(60)
    left = submitted(made, Addition(log))
    closing = threading.Thread(target=made.close)
    closing.start()
    with pytest.raises(ModelNotReady):
        left.answer()
    gate.set()
    assert running.answer() == 2
    closing.join(60)


def test_the_parameters_file_of_tensorflow_serving_is_understood() -> None:
    text = "max_batch_size { value: 128 } batch_timeout_micros { value: 2000 } max_enqueued_batches { value: 10 }"
    found = parse_batching_parameters(text + " num_batch_threads { value: 4 } allowed_batch_sizes: 128", "b.conf")
    assert found == BatchSettings(max_rows=128, wait_s=0.002, max_queued_rows=1280, threads=4)
    assert parse_batching_parameters("", "b.conf") == BatchSettings()
    for text, said in (("x: 1", "b.conf"), ("max_batch_size { value: 0 }", "max_rows is 0")):
        with pytest.raises(ConfigError, match=said):
            parse_batching_parameters(text, "b.conf")
    with pytest.raises(ConfigError, match="wait_s is 11"):
        BatchSettings(wait_s=11)


def test_a_free_thread_starts_immediately_and_later_requests_form_a_batch(queue: Callable[..., BatchQueue]) -> None:
    made, log, gate = queue(threads=2), [], threading.Event()
    running = []
    for rows in (4, 1):
        work = Addition(log, rows=rows, gate=gate)
        running.append(submitted(made, work))
        assert work.begun.wait(60)  # beside the call before it, however small
    waiting = [submitted(made, Addition(log, rows=rows)) for rows in (1, 2, 3)]
    gate.set()
    assert [each.answer() for each in running + waiting] == [5, 2, 2, 3, 4]
    assert sorted(log) == [1, 1, 3]


def test_a_waiting_batch_is_computed_when_the_call_before_it_ends(queue: Callable[..., BatchQueue]) -> None:
    made, log, gate = queue(threads=1), [], threading.Event()
    first = Addition(log, rows=4, gate=gate)
    running = submitted(made, first)
    assert first.begun.wait(60)
    waiting = submitted(made, Addition(log, rows=3))
    gate.set()
    assert (running.answer(), waiting.answer()) == (5, 4)
    assert log == [1, 1]


def test_a_batch_runs_until_the_latest_deadline_of_its_requests(queue: Callable[..., BatchQueue]) -> None:
    made, log, gate = queue(max_rows=10), [], threading.Event()
    seen: list[float | None] = []

    class Noting(Addition):
        def do(self, works: Sequence[Addition]) -> list[Any]:
            seen.append(request_deadline_s())
            return super().do(works)

    first = Addition(log, gate=gate)
    waiters = [submitted(made, first)]
    assert first.begun.wait(60)
    now_s = SystemClock().monotonic_s()
    waiters += [submitted(made, Noting(log), deadline_s=now_s + each) for each in (100.0, 500.0, 300.0)]
    gate.set()
    assert [waiter.answer() for waiter in waiters] == [2, 2, 2, 2]
    assert seen == [now_s + 500.0], "one impatient client must not end the batch for the others"
    gate.clear()
    held = Addition(log, gate=gate)
    waiters = [submitted(made, held)]
    assert held.begun.wait(60)
    waiters += [submitted(made, Noting(log), deadline_s=now_s + 100.0), submitted(made, Noting(log))]
    gate.set()
    assert [waiter.answer() for waiter in waiters] == [2, 2, 2]
    assert seen[1:] == [None], "a request without a deadline has no end"
