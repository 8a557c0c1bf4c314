"""Workers wait for each other, continue together, and leave no state behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from monolith.ps.barrier import CANCELLED, INVALID, OK, BarrierResult, Barriers

LONG_MS = 60_000


@pytest.fixture
def barriers() -> Barriers:
    return Barriers()


@pytest.fixture
def pool() -> ThreadPoolExecutor:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def arrive(barriers: Barriers, pool: ThreadPoolExecutor, *who: int, of: int, id: str = "b") -> list[Future]:
    """Let workers arrive, and return when they have."""
    futures = []
    for worker in who:
        is_in = threading.Event()

        def on_cancel(leave: Callable[[], None], is_in: threading.Event = is_in) -> None:
            is_in.set()  # handed over after the arrival

        futures.append(pool.submit(barriers.wait, id, worker, of, LONG_MS, on_cancel))
        assert is_in.wait(30)
    return futures


def test_all_workers_continue_when_the_last_arrives_and_the_id_is_free_again(
    barriers: Barriers, pool: ThreadPoolExecutor
) -> None:
    for _ in range(3):
        waiting = arrive(barriers, pool, 0, 2, of=3)
        assert barriers.wait("b", 1, 3, LONG_MS) == BarrierResult(OK, "", 3)
        assert [future.result(30) for future in waiting] == [BarrierResult(OK, "", 3)] * 2
        assert len(barriers) == 0


def test_a_thousand_rounds_miss_no_release(barriers: Barriers, pool: ThreadPoolExecutor) -> None:
    def rounds(worker: int) -> set[BarrierResult]:
        return {barriers.wait("b", worker, 3, LONG_MS) for _ in range(1000)}

    results = [pool.submit(rounds, worker) for worker in range(3)]
    assert [result.result(60) for result in results] == [{BarrierResult(OK, "", 3)}] * 3
    assert len(barriers) == 0


def test_a_caller_whose_time_is_up_leaves_and_may_come_again(barriers: Barriers, pool: ThreadPoolExecutor) -> None:
    assert barriers.wait("b", 0, 2, 1) == BarrierResult(INVALID, "Barrier timeout", 0)
    assert len(barriers) == 0
    (waiting,) = arrive(barriers, pool, 0, of=2)
    assert barriers.wait("b", 1, 2, LONG_MS).status == OK
    assert waiting.result(30).status == OK


def test_a_timeout_that_no_lock_can_hold_waits_too(barriers: Barriers, pool: ThreadPoolExecutor) -> None:
    is_in = threading.Event()
    waiting = pool.submit(barriers.wait, "b", 0, 2, (1 << 63) - 1, lambda leave: is_in.set())
    assert is_in.wait(30)
    assert barriers.wait("b", 1, 2, LONG_MS).status == OK
    assert waiting.result(30) == BarrierResult(OK, "", 2)


def test_a_timeout_returns_how_many_workers_have_arrived(barriers: Barriers, pool: ThreadPoolExecutor) -> None:
    waiting = arrive(barriers, pool, 0, 1, of=4)
    assert barriers.wait("b", 2, 4, 1) == BarrierResult(INVALID, "Barrier timeout", 2)
    arrive(barriers, pool, 2, of=4)
    assert barriers.wait("b", 3, 4, LONG_MS).status == OK
    assert {future.result(30).status for future in waiting} == {OK}


def test_a_cancelled_caller_is_not_counted_and_does_not_block_its_retry(
    barriers: Barriers, pool: ThreadPoolExecutor
) -> None:
    leaves: list[Callable[[], None]] = []
    is_in = threading.Event()

    def on_cancel(leave: Callable[[], None]) -> None:
        leaves.append(leave)
        is_in.set()

    cancelled = pool.submit(barriers.wait, "b", 0, 2, LONG_MS, on_cancel)
    assert is_in.wait(30)
    leaves[0]()
    assert len(barriers) == 0
    assert cancelled.result(30) == BarrierResult(CANCELLED, "Barrier cancelled", 0)
    (retry,) = arrive(barriers, pool, 0, of=2)
    leaves[0]()  # a late callback of the first call does not touch the second
    assert barriers.wait("b", 1, 2, LONG_MS).status == OK
    assert retry.result(30).status == OK


def test_a_caller_that_disconnected_before_it_waits_leaves_immediately(barriers: Barriers) -> None:
    assert barriers.wait("b", 0, 2, LONG_MS, lambda leave: False).status == CANCELLED
    assert len(barriers) == 0


def test_a_cancel_after_the_release_changes_nothing(barriers: Barriers, pool: ThreadPoolExecutor) -> None:
    leaves: list[Callable[[], None]] = []
    is_in = threading.Event()

    def on_cancel(leave: Callable[[], None]) -> None:
        leaves.append(leave)
        is_in.set()

    waiting = pool.submit(barriers.wait, "b", 0, 2, LONG_MS, on_cancel)
    assert is_in.wait(30)
    assert barriers.wait("b", 1, 2, LONG_MS).status == OK
    leaves[0]()
    assert waiting.result(30).status == OK


def test_a_duplicate_is_refused_and_the_first_is_still_released(barriers: Barriers, pool: ThreadPoolExecutor) -> None:
    (first,) = arrive(barriers, pool, 0, of=2)
    again = barriers.wait("b", 0, 2, LONG_MS)
    assert again == BarrierResult(INVALID, "Worker 0 already arrived for barrier b", 1)
    assert barriers.wait("b", 1, 2, LONG_MS).status == OK
    assert first.result(30).status == OK


def test_another_number_of_workers_is_refused_while_a_worker_waits(
    barriers: Barriers, pool: ThreadPoolExecutor
) -> None:
    arrive(barriers, pool, 0, of=2)
    assert barriers.wait("b", 1, 3, LONG_MS).message == "Barrier b expects num_workers=2, got 3"
    assert barriers.wait("b", 1, 2, LONG_MS).status == OK
    assert barriers.wait("b", 0, 1, LONG_MS).status == OK


@pytest.mark.parametrize(
    ("worker", "workers", "timeout_ms", "message"),
    [
        (0, 0, LONG_MS, "num_workers must be > 0"),
        (0, -1, LONG_MS, "num_workers must be > 0"),
        (2, 2, LONG_MS, "worker_id 2 out of range for num_workers=2"),
        (-1, 2, LONG_MS, "worker_id -1 out of range for num_workers=2"),
        (0, 2, 0, "timeout_ms must be > 0"),
        (0, 2, -5, "timeout_ms must be > 0"),
    ],
)
def test_impossible_calls_are_refused(
    barriers: Barriers, worker: int, workers: int, timeout_ms: int, message: str
) -> None:
    assert barriers.wait("b", worker, workers, timeout_ms) == BarrierResult(INVALID, message, 0)
    assert len(barriers) == 0


def test_more_waiting_callers_than_threads_are_refused_except_the_last_of_a_round(
    pool: ThreadPoolExecutor,
) -> None:
    barriers = Barriers(max_waiting=1)
    (waiting,) = arrive(barriers, pool, 0, of=2)
    assert "the limit of this server" in barriers.wait("other", 0, 2, LONG_MS).message
    assert barriers.wait("b", 1, 2, LONG_MS).status == OK
    assert waiting.result(30).status == OK
