"""Queue of requests for the model threads, with dynamic batching.

While all threads are busy, requests collect in the ``BatchQueue``. A free thread takes the oldest ``Job`` and all jobs
with an equal key, up to ``max_rows``. With ``wait_s`` > 0 a free thread also waits for more jobs. The queue is bounded:
``submit`` raises ``Overloaded`` when it is full. Jobs past their deadline, or whose caller is gone, are not computed.
Thread safe.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ConfigError, ModelNotReady, Overloaded, RecordCorrupt, RpcTimeout
from monolith.serving.api import messages
from monolith.serving.requests.request_deadline import deadline

__all__ = ["BatchQueue", "BatchSettings", "QueuedRequest", "Work", "parse_batching_parameters"]

logger = logging.getLogger(__name__)

_PYTHON_THREADS = 2
"""Batches in Python wait for the interpreter lock, so more threads answer fewer requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """Bounds of batches and of the queue."""

    max_rows: int = 4096
    """Rows of one batch; a single request may have more. 1 disables batching."""
    wait_s: float = 0.0
    """Latency budget: how long a free thread waits for further requests of a batch."""
    threads: int = 0
    """Batches computed in parallel; 0 means one per core on the native path, and 2 on the Python path."""
    max_queued_rows: int = 200_000
    """Rows in the queue; further requests are refused."""
    max_queued_bytes: int = 256 << 20
    """Bytes of the queued requests."""

    def __post_init__(self) -> None:
        for name in ("max_rows", "max_queued_rows", "max_queued_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"BatchSettings.{name} is {getattr(self, name)!r}, expected at least 1")
        if self.threads < 0:
            raise ConfigError(f"BatchSettings.threads is {self.threads!r}, expected 1 or more, or 0 for the default")
        if not 0 <= self.wait_s <= 10:
            raise ConfigError(f"BatchSettings.wait_s is {self.wait_s!r}, expected 0 to 10 seconds")

    @property
    def native_threads(self) -> int:
        """Threads of the native path on this machine."""
        return self.threads or len(os.sched_getaffinity(0))

    @property
    def python_threads(self) -> int:
        """Threads of the Python path."""
        return self.threads or _PYTHON_THREADS


def parse_batching_parameters(text: str, source: str, default: BatchSettings | None = None) -> BatchSettings:
    """Return the settings of a TensorFlow Serving batching parameters file; missing fields come from ``default``.

    Raises:
        ConfigError: The text is invalid, or a value is out of range.
    """
    default = default or BatchSettings()
    parsed = messages.BatchingParameters()
    try:
        messages.parse_text(text, parsed, source)
    except RecordCorrupt as exc:
        raise ConfigError(f"{exc}; write it as max_batch_size {{ value: 128 }}") from exc

    def of(name: str, otherwise: int) -> int:
        return int(getattr(parsed, name).value) if parsed.HasField(name) else otherwise

    rows = of("max_batch_size", default.max_rows)
    batches = of("max_enqueued_batches", 0)
    return BatchSettings(
        max_rows=rows,
        wait_s=of("batch_timeout_micros", int(default.wait_s * 1e6)) / 1e6,
        threads=of("num_batch_threads", default.threads),
        max_queued_rows=rows * batches if batches else default.max_queued_rows,
        max_queued_bytes=default.max_queued_bytes,
    )


class Work(Protocol):
    """Computation of one request."""

    @property
    def key(self) -> Hashable:
        """Works with equal keys can form a batch; None means alone."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    @property
    def nbytes(self) -> int:
        """Bytes of the inputs."""

    def do(self, works: Sequence[Any]) -> Sequence[Any]:
        """Return one result per work of equal key. An exception as a result is the error of that work."""


class QueuedRequest:
    """One request in the queue. A model thread calls ``done`` once, with the answer or the error set."""

    __slots__ = ("answer", "deadline_s", "done", "error", "is_wanted", "queued_s", "work")

    def __init__(
        self,
        work: Work,
        done: Callable[[QueuedRequest], None],
        deadline_s: float | None = None,
        is_wanted: Callable[[], bool] | None = None,
    ) -> None:
        self.work = work
        self.done = done
        self.deadline_s = deadline_s
        """Deadline on the queue's clock."""
        self.is_wanted = is_wanted
        """Returns whether the caller is still connected; called before the computation."""
        self.answer: Any = None
        self.error: BaseException | None = None
        self.queued_s = 0.0

    def is_late(self, now_s: float) -> bool:
        """Return whether the deadline passed or the caller is gone."""
        if self.deadline_s is not None and self.deadline_s <= now_s:
            return True
        return self.is_wanted is not None and not self.is_wanted()


class BatchQueue:
    """Runs jobs in background threads, in batches where possible.

    Args:
        settings: Bounds of batches and of the queue.
        clock: Clock of deadlines and waiting times.
        on_batch: Called for each batch with the number of requests, rows, and the wait of the first request.
    """

    def __init__(
        self,
        settings: BatchSettings,
        clock: Clock | None = None,
        on_batch: Callable[[int, int, float], None] | None = None,
    ) -> None:
        self.settings = settings
        self._clock = clock or SystemClock()
        self._on_batch = on_batch
        self._jobs: deque[QueuedRequest] = deque()
        self._rows = 0
        self._bytes = 0
        self._under_way = 0
        self._is_closed = False
        self._changed = threading.Condition(threading.Lock())
        self._idle = threading.Condition(self._changed._lock)  # type: ignore[attr-defined]
        self._threads = [
            threading.Thread(target=self._serve, name=f"model-{index}", daemon=True)
            for index in range(settings.python_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: QueuedRequest) -> None:
        """Add a job to the queue.

        Raises:
            Overloaded: The queue is full.
            ModelNotReady: The server is stopping.
        """
        work = job.work
        rows, nbytes = max(1, work.rows), work.nbytes
        with self._changed:
            if self._is_closed:
                raise ModelNotReady("the server is stopping; use another replica")
            is_full = (
                self._rows + rows > self.settings.max_queued_rows
                or self._bytes + nbytes > self.settings.max_queued_bytes
            )
            # An empty queue takes any single request; the transport has bounded its size.
            if is_full and self._jobs:
                raise Overloaded(
                    f"the queue is full ({self._rows} rows, {self._bytes} bytes); retry later, or use another replica"
                )
            job.queued_s = self._clock.monotonic_s()
            self._jobs.append(job)
            self._rows += rows
            self._bytes += nbytes
            self._changed.notify()

    @property
    def threads(self) -> Sequence[threading.Thread]:
        """The model threads."""
        return tuple(self._threads)

    @property
    def queued(self) -> tuple[int, int]:
        """Number of queued requests and rows."""
        return len(self._jobs), self._rows

    def drain(self, timeout_s: float) -> bool:
        """Refuse new jobs and wait for the present ones; return False on timeout."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            return self._idle.wait_for(lambda: not self._jobs and not self._under_way, timeout_s)

    def close(self, timeout_s: float = 0.0) -> None:
        """Drain the queue, fail the remaining jobs, and stop the threads."""
        self.drain(timeout_s)
        with self._changed:
            left = list(self._jobs)
            self._jobs.clear()
            self._rows = self._bytes = 0
        for job in left:
            self._end(job, None, ModelNotReady("the server is stopping; use another replica"))
        for thread in self._threads:
            thread.join(timeout_s + 5.0)

    # --- inside ---

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._jobs:
                    if self._is_closed:
                        return
                    self._changed.wait()
                jobs = self._take()
                self._under_way += 1
                if self._jobs:  # more than one batch is waiting
                    self._changed.notify()
            try:
                self._answer(jobs)
            finally:
                del jobs  # an idle thread must not keep a version that is unloaded meanwhile
                with self._changed:
                    self._under_way -= 1
                    if not self._jobs and not self._under_way:
                        self._idle.notify_all()

    def _take(self) -> list[QueuedRequest]:
        first = self._jobs[0]
        key, wait_s = first.work.key, self.settings.wait_s
        if wait_s > 0 and key is not None and not self._is_closed:
            until_s = first.queued_s + wait_s
            while self._jobs and self._jobs[0] is first and self._rows < self.settings.max_rows:
                left_s = until_s - self._clock.monotonic_s()
                if left_s <= 0 or self._is_closed:
                    break
                self._changed.wait(left_s)
            if not self._jobs:  # another thread took the jobs
                return []
            first = self._jobs[0]
            key = first.work.key
        taken = [self._jobs.popleft()]
        rows = first.work.rows
        if key is not None and self._jobs:
            rest: deque[QueuedRequest] = deque()
            for job in self._jobs:
                if job.work.key == key and rows + job.work.rows <= self.settings.max_rows:
                    rows += job.work.rows
                    taken.append(job)
                else:
                    rest.append(job)
            self._jobs = rest
        for job in taken:
            self._rows -= max(1, job.work.rows)
            self._bytes -= job.work.nbytes
        return taken

    def _answer(self, taken: list[QueuedRequest]) -> None:
        now_s = self._clock.monotonic_s()
        jobs = []
        for job in taken:
            if job.is_late(now_s):
                self._end(
                    job, None, RpcTimeout("the deadline passed while the request was queued; use a longer deadline")
                )
            else:
                jobs.append(job)
        if not jobs:
            return
        if self._on_batch is not None:
            self._on_batch(len(jobs), sum(job.work.rows for job in jobs), now_s - jobs[0].queued_s)
        deadlines = [job.deadline_s for job in jobs if job.deadline_s is not None]
        try:
            with deadline(max(deadlines) if len(deadlines) == len(jobs) else None):
                answers = jobs[0].work.do([job.work for job in jobs])
        except Exception as error:
            answers = [error] * len(jobs)
        for job, answer in zip(jobs, answers, strict=True):
            if isinstance(answer, BaseException):
                self._end(job, None, answer)
            else:
                self._end(job, answer, None)

    def _end(self, job: QueuedRequest, answer: Any, error: BaseException | None) -> None:
        job.answer, job.error = answer, error
        try:
            job.done(job)
        except Exception:  # a failing callback must not stop this thread
            logger.exception("result callback failed")
