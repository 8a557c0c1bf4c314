"""The schedule of a step's parts: batches read ahead, rows pulled ahead, gradients applied late.

Every pull and push goes through one queue in a fixed order, so a run gives the same bytes each time, however the
threads are scheduled. The exact cost of each setting in freshness:

===============================  ==========================================================================
setting                          rows that a step sees
===============================  ==========================================================================
all off                          after the push of the step before: sequential
embedding_prefetch_capacity = k  after the push of k steps earlier still: k steps old
enable_embedding_postpush        the push of a step runs during the next one: 1 step older
enable_variable_postpush         dense weights are updated after the next step's backward: 1 step old
===============================  ==========================================================================

``drain`` applies every late update and drops the rows that were pulled ahead. Checkpoints are taken after it, so a
resumed run gives the same bytes as the run that saved.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from monolith.core.errors import MonolithError
from monolith.data import Batch
from monolith.features import PulledBatch
from monolith.training.run import Mark, StepResult
from monolith.training.step import Gradients, Stepper

__all__ = ["Pipeline"]


@dataclass(slots=True, eq=False)
class _Ahead:
    """A batch that was read, and its pull once submitted."""

    batch: Batch
    mark: Mark
    pulled: Future[PulledBatch] | None = field(default=None)


class _Turns:
    """FIFO lock: re-acquiring immediately cannot starve waiting threads."""

    def __init__(self) -> None:
        self._next = threading.Lock()
        self._held = threading.Lock()

    def __enter__(self) -> None:
        with self._next:
            self._held.acquire()

    def __exit__(self, *error: object) -> None:
        self._held.release()


class Pipeline:
    """Runs the steps of a stream of batches; used by one thread, except ``settled``.

    Args:
        stepper: Computes and applies the steps.
        batches: The batches, each with the mark of the position behind it.
        prefetch: Pulls ahead of the step, at most.
        late_push: Whether a push runs during the next step.
        late_dense: Whether dense weights are updated one step late.
    """

    def __init__(
        self,
        stepper: Stepper,
        batches: Iterator[tuple[Batch, Mark]],
        *,
        prefetch: int = 0,
        late_push: bool = False,
        late_dense: bool = False,
    ) -> None:
        self._stepper = stepper
        self._batches = batches
        self._prefetch = prefetch
        self._late_push = late_push
        self._late_dense = late_dense
        self._ahead: deque[_Ahead] = deque()
        self._reading_failed: Exception | None = None
        self._unpushed: Gradients | None = None
        self._unapplied: Gradients | None = None
        self._pushes: deque[Future[None]] = deque()
        self._is_halfway = False
        self._store = ThreadPoolExecutor(1, "embeddings") if prefetch or late_push else None
        self._turns = _Turns()

    def run_step(self, step: int) -> StepResult | None:
        """Take the next batch through one step; None when the data has ended."""
        self._read_ahead()
        if not self._ahead:
            if self._reading_failed is not None:
                raise self._reading_failed
            return None
        with self._turns:
            self._is_halfway = True  # until the step is done: a failure in between may leave a part of it applied
            result = self._run_step(step)
            self._is_halfway = False
            return result

    def _run_step(self, step: int) -> StepResult:
        for one in self._ahead:
            self._pull(one)
        if self._unpushed is not None:
            self._push(self._unpushed)
            self._unpushed = None
        one = self._ahead.popleft()
        assert one.pulled is not None
        computed = self._stepper.compute(one.pulled.result(), step)
        # Before the updates: a GPU that has just been waited for has the predictions, and is not waited for again.
        result = computed.heads.step_result(one.batch, computed.totals, step=step + 1, mark=one.mark)
        gradients = computed.gradients
        self._apply_dense(gradients)
        if self._late_push:
            self._unpushed = gradients
        else:
            self._push(gradients)
        while len(self._pushes) > (1 if self._late_push else 0):
            self._pushes.popleft().result()
        return result

    def _apply_dense(self, gradients: Gradients) -> None:
        if not self._late_dense:
            self._stepper.apply_dense(gradients)
            return
        late, self._unapplied = self._unapplied, gradients
        if late is not None:
            self._stepper.apply_dense(late)

    def _read_ahead(self) -> None:
        while len(self._ahead) <= self._prefetch and self._reading_failed is None:
            try:
                marked = next(self._batches, None)
            except Exception as error:  # of a later batch: those before it are good
                self._reading_failed = error
                return
            if marked is None:
                return
            self._ahead.append(_Ahead(*marked))

    def _pull(self, one: _Ahead) -> None:
        if one.pulled is None:
            one.pulled = self._submit(self._pull_rows, one.batch)

    def _pull_rows(self, batch: Batch) -> PulledBatch:
        return self._stepper.embedder.pull(batch, before_push=True)

    def _push(self, gradients: Gradients) -> None:
        self._pushes.append(self._submit(self._stepper.apply_sparse, gradients))

    def _submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        if self._store is not None:
            return self._store.submit(call, *args)
        done: Future[Any] = Future()
        done.set_result(call(*args))
        return done

    def drain(self) -> None:
        """Apply every late update, wait for it, and drop the rows that were pulled ahead."""
        if self._unpushed is not None:
            self._push(self._unpushed)
            self._unpushed = None
        if self._unapplied is not None:
            self._stepper.apply_dense(self._unapplied)
            self._unapplied = None
        while self._pushes:
            self._pushes.popleft().result()
        for one in self._ahead:
            if one.pulled is not None:
                one.pulled.exception()  # waits; the error of a batch is raised in its own step
                one.pulled = None

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Keep the loop between two steps, with every late update applied; for another thread, or between two steps.

        Reading continues, and rows that were pulled ahead stay. The error of a failed update is raised by the steps.

        Raises:
            MonolithError: A step has failed, and a part of it may be applied: the state is inconsistent.
        """
        with self._turns:
            if self._unpushed is not None:
                self._push(self._unpushed)
                self._unpushed = None
            if self._unapplied is not None:
                self._stepper.apply_dense(self._unapplied)
                self._unapplied = None
            wait(self._pushes)
            if self._is_halfway or any(push.exception() is not None for push in self._pushes):
                raise MonolithError(
                    "a step has failed halfway; the state is neither that before the step nor that after it"
                )
            yield

    def close(self) -> None:
        """Stop the thread and release the batches; running updates finish, late updates are dropped."""
        if self._store is not None:
            self._store.shutdown(wait=True, cancel_futures=True)
        self._ahead.clear()
        self._pushes.clear()
        self._unpushed = self._unapplied = None
