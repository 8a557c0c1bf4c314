"""Barriers that workers meet at: everyone waits until all have arrived, then all go on.

Each meeting is an object of its own. Whoever waits holds on to it, so a release cannot be missed, and the same id can
be used again at once. An id is forgotten when nobody waits under it. No transport is known here.
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
    """How a wait ended."""

    status: int
    """``OK``, ``INVALID`` (also for a timeout) or ``CANCELLED``."""
    message: str
    num_arrived: int
    """Workers that are there, the caller not among them unless all are."""


@dataclass(eq=False)
class _Caller:
    is_gone: bool = False


@dataclass(eq=False)
class _Meeting:
    workers: int
    changed: threading.Condition
    arrived: dict[int, _Caller] = field(default_factory=dict)
    is_complete: bool = False


class Barriers:
    """All barriers of a server. Safe to use from several threads.

    Args:
        max_waiting: Callers that may wait at the same time: each of them holds a thread.
        clock: Measures the timeouts.
    """

    def __init__(self, max_waiting: int = 512, clock: Clock | None = None) -> None:
        self._max_waiting = max_waiting
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._meetings: dict[str, _Meeting] = {}
        self._waiting = 0

    def __len__(self) -> int:
        """Barriers at which somebody waits."""
        with self._lock:
            return len(self._meetings)

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
            barrier_id: Which barrier.
            worker: Who arrives, from 0 to ``workers`` - 1.
            workers: Who is expected; the first to arrive decides for the others.
            timeout_ms: After that the caller leaves again.
            on_cancel: Is handed a function to call, from any thread, when the caller is gone; returns False when it is
                gone already.
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
            meeting = self._meetings.get(barrier_id) or _Meeting(workers, threading.Condition(self._lock))
            if refusal := self._refusal(barrier_id, meeting, worker, workers):
                return BarrierResult(INVALID, refusal, len(meeting.arrived))
            self._meetings[barrier_id] = meeting
            meeting.arrived[worker] = caller
            if len(meeting.arrived) == workers:
                meeting.is_complete = True
                del self._meetings[barrier_id]
                meeting.changed.notify_all()
                return BarrierResult(OK, "", workers)
            self._waiting += 1

        def leave() -> None:
            with self._lock:
                self._leave(barrier_id, meeting, worker, caller)

        # Outside the lock: the transport may call back at once.
        if on_cancel is not None and on_cancel(leave) is False:
            leave()
        return self._wait(barrier_id, meeting, worker, caller, deadline)

    def _wait(
        self, barrier_id: str, meeting: _Meeting, worker: int, caller: _Caller, deadline: Deadline
    ) -> BarrierResult:
        with self._lock:
            while not (meeting.is_complete or caller.is_gone or deadline.is_past):
                meeting.changed.wait(deadline.remaining_s())
            self._waiting -= 1
            if meeting.is_complete:  # also where the time is up at the same moment
                return BarrierResult(OK, "", meeting.workers)
            if caller.is_gone:
                return BarrierResult(CANCELLED, "Barrier cancelled", len(meeting.arrived))
            self._leave(barrier_id, meeting, worker, caller)
            return BarrierResult(INVALID, "Barrier timeout", len(meeting.arrived))

    def _refusal(self, barrier_id: str, meeting: _Meeting, worker: int, workers: int) -> str:
        if meeting.workers != workers:
            return f"Barrier {barrier_id} expects num_workers={meeting.workers}, got {workers}"
        if worker in meeting.arrived:
            return f"Worker {worker} already arrived for barrier {barrier_id}"
        if len(meeting.arrived) + 1 < workers and self._waiting >= self._max_waiting:
            return f"{self._waiting} workers wait at barriers, which is the most this server allows"
        return ""

    def _leave(self, barrier_id: str, meeting: _Meeting, worker: int, caller: _Caller) -> None:
        """Take one caller back, so that it can come again and nobody is released by its absence."""
        if meeting.is_complete or meeting.arrived.get(worker) is not caller:
            return
        caller.is_gone = True
        del meeting.arrived[worker]
        if not meeting.arrived:
            del self._meetings[barrier_id]
        meeting.changed.notify_all()
