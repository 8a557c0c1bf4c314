"""Barriers: every worker waits until all workers have arrived.

Each round of a barrier is one object, which its waiters reference. So no waiter misses a release, and an id can be
reused immediately. An id without waiters is removed. Independent of transports.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from monolith.core.clock import Clock, Deadline, SystemClock

__all__ = ["CANCELLED", "INVALID", "OK", "BarrierResult", "Barriers"]

OK, INVALID, CANCELLED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class BarrierResult:
    """Result of a wait."""

    status: int
    """``OK``, ``INVALID`` (also for a timeout) or ``CANCELLED``."""
    message: str
    num_arrived: int
    """Workers that have arrived, without the caller unless the round is complete."""


@dataclass(eq=False)
class _Caller:
    has_left: bool = False


@dataclass(eq=False)
class _Round:
    workers: int
    changed: threading.Condition
    arrived: dict[int, _Caller] = field(default_factory=dict)
    is_complete: bool = False


class Barriers:
    """All barriers of a server. Thread safe.

    Args:
        max_waiting: Limit of concurrent waiters; each occupies a thread.
        clock: Measures the timeouts.
    """

    def __init__(self, max_waiting: int = 512, clock: Clock | None = None) -> None:
        self._max_waiting = max_waiting
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._rounds: dict[str, _Round] = {}
        self._waiting = 0

    def __len__(self) -> int:
        """Return the number of barriers with waiters."""
        with self._lock:
            return len(self._rounds)

    def wait(
        self,
        barrier_id: str,
        worker: int,
        workers: int,
        timeout_ms: int,
        on_cancel: Callable[[Callable[[], None]], object] | None = None,
    ) -> BarrierResult:
        """Arrive, and wait until all ``workers`` have arrived.

        Args:
            barrier_id: Name of the barrier.
            worker: Index of the caller, from 0 to ``workers`` - 1.
            workers: Number of workers; the first caller of a round decides it.
            timeout_ms: Timeout of the wait.
            on_cancel: Registers a callback for the disconnect of the caller, callable from any thread; returns False if
                the caller has disconnected already.
        """
        if workers <= 0:
            return BarrierResult(INVALID, "num_workers must be > 0", 0)
        if timeout_ms <= 0:
            return BarrierResult(INVALID, "timeout_ms must be > 0", 0)
        if not 0 <= worker < workers:
            return BarrierResult(INVALID, f"worker_id {worker} out of range for num_workers={workers}", 0)
        deadline = Deadline(self._clock, timeout_ms / 1000)
        caller = _Caller()
        with self._lock:
            round_ = self._rounds.get(barrier_id) or _Round(workers, threading.Condition(self._lock))
            if refusal := self._refusal(barrier_id, round_, worker, workers):
                return BarrierResult(INVALID, refusal, len(round_.arrived))
            self._rounds[barrier_id] = round_
            round_.arrived[worker] = caller
            if len(round_.arrived) == workers:
                round_.is_complete = True
                del self._rounds[barrier_id]
                round_.changed.notify_all()
                return BarrierResult(OK, "", workers)
            self._waiting += 1

        def leave() -> None:
            with self._lock:
                self._leave(barrier_id, round_, worker, caller)

        # Outside the lock: the transport may call back immediately.
        if on_cancel is not None and on_cancel(leave) is False:
            leave()
        return self._wait(barrier_id, round_, worker, caller, deadline)

    def _wait(self, barrier_id: str, round_: _Round, worker: int, caller: _Caller, deadline: Deadline) -> BarrierResult:
        with self._lock:
            while not (round_.is_complete or caller.has_left or deadline.is_past):
                round_.changed.wait(min(deadline.remaining_s(), threading.TIMEOUT_MAX))
            self._waiting -= 1
            if round_.is_complete:  # also if the deadline passed meanwhile
                return BarrierResult(OK, "", round_.workers)
            if caller.has_left:
                return BarrierResult(CANCELLED, "Barrier cancelled", len(round_.arrived))
            self._leave(barrier_id, round_, worker, caller)
            return BarrierResult(INVALID, "Barrier timeout", len(round_.arrived))

    def _refusal(self, barrier_id: str, round_: _Round, worker: int, workers: int) -> str:
        if round_.workers != workers:
            return f"Barrier {barrier_id} expects num_workers={round_.workers}, got {workers}"
        if worker in round_.arrived:
            return f"Worker {worker} already arrived for barrier {barrier_id}"
        if len(round_.arrived) + 1 < workers and self._waiting >= self._max_waiting:
            return f"{self._waiting} workers wait at barriers, which is the limit of this server"
        return ""

    def _leave(self, barrier_id: str, round_: _Round, worker: int, caller: _Caller) -> None:
        """Remove one caller from its round, so that it can arrive again and its absence releases no worker."""
        if round_.is_complete or round_.arrived.get(worker) is not caller:
            return
        caller.has_left = True
        del round_.arrived[worker]
        if not round_.arrived:
            del self._rounds[barrier_id]
        round_.changed.notify_all()
