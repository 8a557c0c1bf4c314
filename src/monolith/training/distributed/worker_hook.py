"""What makes one run a worker among several: it waits for the chief, exchanges dense weights, and ends with the others.

Workers train asynchronously. Each keeps its own dense optimizer and adds the change that its steps made to the weights
on the servers, then goes on from what is there; so every worker's changes count in full, and a worker that is killed
takes none of them away. Running statistics of layers (buffers) are each worker's own; a checkpoint has the chief's.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from monolith.core.clock import Clock, Deadline
from monolith.core.errors import DataError, RpcTimeout
from monolith.training.distributed.shared_rows import DONE, HELD, READY, STOPPING, SharedRows, WorkerRow, total_steps
from monolith.training.hooks.base import Hook
from monolith.training.run import Run, StepResult

__all__ = ["ChiefHook", "Waiting", "WorkerHook", "wait_for_chief", "weights_of"]

logger = logging.getLogger(__name__)

_END_POLL_S = 0.2
_HOLD_POLL_S = 0.5
_STOPPING_S = 20.0  # who stops a job does not wait half an hour for a worker that is dead


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """How long workers wait for each other."""

    restore_timeout_s: float
    """Of a worker, for the chief to restore."""
    restore_poll_s: float
    """From one look to the next."""
    chief_timeout_s: float
    """Of the chief, at the end, since the last sign of any other worker."""


def weights_of(model: nn.Module) -> list[nn.Parameter]:
    """Return the weights that workers share."""
    return [weight for weight in model.parameters() if weight.requires_grad]


def wait_for_chief(
    rows: SharedRows, index: int, waiting: Waiting, clock: Clock, has_begun: Callable[[], bool] = lambda: True
) -> None:
    """Wait until the chief has restored.

    Args:
        rows: Where all workers stand.
        index: Which worker waits.
        waiting: How long.
        clock: Measures it.
        has_begun: Whether anybody has trained on these servers since they were started. Before that, what they say of
            the chief is of an earlier job.

    Raises:
        RpcTimeout: It has not in time.
    """
    deadline = Deadline(clock, waiting.restore_timeout_s)
    while not has_begun() or rows.read()[0].state not in (READY, STOPPING):
        if deadline.is_past:
            raise RpcTimeout(
                f"Timed out waiting for the chief to restore: worker {index} waited {waiting.restore_timeout_s:g} s; "
                "look at worker 0, or raise restore_sync_timeout_secs",
                retryable=False,
            )
        clock.sleep_s(waiting.restore_poll_s)


class _Member(Hook):
    """A worker or the chief: the exchange, and whether the job is over."""

    def __init__(
        self, rows: Callable[[Run], SharedRows], index: int, *, max_steps: int | None = None, exchange_steps: int = 1
    ) -> None:
        self._open_rows = rows
        self._index = index
        self._max_steps = max_steps
        self._exchange_steps = exchange_steps
        self._parameters: list[nn.Parameter] = []
        self._known = torch.empty(0)
        self._session = 0
        self._earlier_steps = 0
        self._steps_of_others = 0
        self._run: Run | None = None
        self.rows: SharedRows
        self._rows_of_others: SharedRows  # the same as another thread sees them

    def on_start(self, run: Run) -> None:
        """Look at what is shared."""
        self._parameters = weights_of(run.model)
        self.rows, self._rows_of_others = self._open_rows(run), self._open_rows(run)
        self._run = run

    @property
    def session(self) -> int:
        """Which start of the job this is."""
        return self._session

    def is_over(self) -> bool:
        """Whether the job ends for this worker: asked by another thread while the loop waits for data, and stops it."""
        if self._run is None:
            return False
        self._obey(self._run, self._rows_of_others.read())
        return self._run.stop_reason is not None

    @property
    def steps_beside(self) -> int:
        """Steps of the job that this run has not taken: those of others as of the last look, and those before it."""
        return self._earlier_steps + self._steps_of_others

    def global_step(self) -> int:
        """Return the steps of all workers together."""
        return total_steps(self.rows.read())

    def after_step(self, run: Run, result: StepResult) -> None:
        """Exchange weights when it is time, and see whether the job goes on."""
        if result.step % self._exchange_steps == 0:
            self._obey(run, self._stand_still(run, self._exchange(run)))

    def _stand_still(self, run: Run, rows: list[WorkerRow]) -> list[WorkerRow]:
        """Wait while workers are held. The chief is held by its own run, so that it can still save."""
        if not self._index or not self._is_held(run, rows):
            return rows
        logger.info("this worker stands still worker=%d step=%d", self._index, run.step)
        self.rows.write(self._row(run, HELD))
        while self._is_held(run, rows := self.rows.read()):
            run.clock.sleep_s(_HOLD_POLL_S)
        self.rows.write(self._row(run, READY))
        logger.info("this worker goes on worker=%d step=%d", self._index, run.step)
        return rows

    def _is_held(self, run: Run, rows: list[WorkerRow]) -> bool:
        is_for_us = self.rows.held_session == rows[0].session != 0
        return is_for_us and run.stop_reason is None and rows[0].state == READY

    def _obey(self, run: Run, rows: list[WorkerRow]) -> None:
        self._note_others(rows)
        if self._index and rows[0].session != self._session:
            self._note_new_session(rows[0].session)
        if self._index and rows[0].state == STOPPING:
            run.stop("the chief ends the job")
        elif self._max_steps is not None and total_steps(rows) >= self._max_steps:
            run.stop(f"all workers together have taken {total_steps(rows)} steps")

    def _note_others(self, rows: list[WorkerRow]) -> None:
        self._steps_of_others = total_steps(rows) - rows[self._index].steps

    def _note_new_session(self, session: int) -> None:
        """The chief was started anew; this worker goes on."""
        self._session = session

    def _row(self, run: Run, state: int) -> WorkerRow:
        return WorkerRow(state, self._session, run.step + self._earlier_steps)

    def _exchange(self, run: Run) -> list[WorkerRow]:
        change = self._vector() - self._known
        weights, rows = self.rows.add(change.numpy(), self._row(run, READY))
        self._take(torch.from_numpy(weights))
        return rows

    def _vector(self) -> torch.Tensor:
        if not self._parameters:
            return torch.empty(0)
        return torch.cat([weight.detach().reshape(-1).to("cpu", torch.float32) for weight in self._parameters])

    @torch.no_grad()
    def _take(self, weights: torch.Tensor) -> None:
        """Go on from shared weights."""
        self._known = weights.clone()
        begin = 0
        for weight in self._parameters:
            end = begin + weight.numel()
            weight.copy_(weights[begin:end].view_as(weight))
            begin = end


class ChiefHook(_Member):
    """Worker 0: gives the others their weights when it has restored, and waits for them at the end.

    Args:
        rows: Opens the shared tables.
        is_live: Whether the servers hold a training that goes on: its weights are taken instead of given.
        on_restored: Called when the training does not go on in the servers, before the workers begin.
        waiting: How long it waits.
        max_steps: Step of all workers together at which they stop.
        exchange_steps: Steps from one exchange of weights to the next.
    """

    def __init__(
        self,
        rows: Callable[[Run], SharedRows],
        *,
        is_live: Callable[[], bool],
        on_restored: Callable[[], None],
        waiting: Waiting,
        max_steps: int | None = None,
        exchange_steps: int = 1,
    ) -> None:
        super().__init__(rows, 0, max_steps=max_steps, exchange_steps=exchange_steps)
        self._is_live = is_live
        self._on_restored = on_restored
        self._waiting = waiting
        self._has_stopped_all = False

    def on_start(self, run: Run) -> None:
        """Publish the weights, or take over those of a training that goes on; then let the workers begin."""
        super().on_start(run)
        weights, rows = self.rows.weights()
        is_live = self._session != 0 or self._is_live()
        self._session = rows[0].session if is_live else 1 + secrets.randbelow(1 << 22)
        shared = torch.from_numpy(weights)
        if not is_live:
            self.rows.write(self._row(run, 0))  # a checkpoint may say that the chief is ready, and it is not yet
            self._on_restored()
            change = self._vector() - shared
            weights, rows = self.rows.add(change.numpy(), self._row(run, READY))
            shared = torch.from_numpy(weights)
        self._take(shared)
        self._note_others(rows)
        self.rows.write(self._row(run, READY))
        if self.rows.held_session == self._session:
            run.pause()  # the workers are held still, by the chief that was here before

    def _obey(self, run: Run, rows: list[WorkerRow]) -> None:
        super()._obey(run, rows)
        self._note_limit(rows)

    def _note_limit(self, rows: list[WorkerRow]) -> None:
        is_reached = self._max_steps is not None and total_steps(rows) >= self._max_steps
        self._has_stopped_all = self._has_stopped_all or is_reached

    def before_end(self, run: Run) -> None:
        """Wait for the others, and take what they learnt into the last checkpoint."""
        self._note_limit(self._exchange(run))
        stops_all = run.stop_reason is not None and not self._has_stopped_all
        state = STOPPING if stops_all else READY
        self.rows.write(self._row(run, state))
        limit_s = self._waiting.chief_timeout_s
        self._wait_for_workers(run, min(limit_s, _STOPPING_S) if stops_all else limit_s)
        weights, rows = self.rows.weights()
        if total_steps(rows) == 0 and run.stop_reason is None:
            raise DataError("the data gave no batch to any worker; check the patterns and filters")
        self._take_last(torch.from_numpy(weights))
        # Part of the checkpoint: who restores it begins a new session.
        self.rows.write(self._row(run, STOPPING if stops_all else DONE))

    def _take_last(self, weights: torch.Tensor) -> None:
        self._take(weights)

    def _wait_for_workers(self, run: Run, timeout_s: float) -> None:
        deadline, seen = Deadline(run.clock, timeout_s), self.rows.read()[1:]
        while missing := [i for i, row in enumerate(seen, 1) if (row.state, row.session) != (DONE, self._session)]:
            if deadline.is_past:
                logger.warning(
                    "the job ends without some of its workers missing=%s timeout_s=%g",
                    missing,
                    timeout_s,
                )
                return
            run.clock.sleep_s(_END_POLL_S)
            before, seen = seen, self.rows.read()[1:]
            if seen != before:
                deadline = Deadline(run.clock, timeout_s)


class WorkerHook(_Member):
    """Any other worker: goes on from what the chief has restored (``wait_for_chief``), and says when it is through.

    Args:
        rows: Opens the shared tables.
        index: Which worker, from 1.
        max_steps: Step of all workers together at which they stop.
        exchange_steps: Steps from one exchange of weights to the next.
        on_new_session: Called when the chief was started anew, with servers that were taken back; None = go on.
    """

    def __init__(
        self,
        rows: Callable[[Run], SharedRows],
        index: int,
        *,
        max_steps: int | None = None,
        exchange_steps: int = 1,
        on_new_session: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(rows, index, max_steps=max_steps, exchange_steps=exchange_steps)
        self._on_new_session = on_new_session

    def _note_new_session(self, session: int) -> None:
        super()._note_new_session(session)
        if self._on_new_session is not None:
            self._on_new_session()

    def on_start(self, run: Run) -> None:
        """Begin from the shared weights."""
        super().on_start(run)
        rows = self.rows.read()
        self._session = rows[0].session
        self._earlier_steps = max(0, rows[self._index].steps - run.step)
        weights, _ = self.rows.weights()
        self._take(torch.from_numpy(weights))
        self.rows.write(self._row(run, READY))
        self._obey(run, rows)

    def before_end(self, run: Run) -> None:
        """Give the last change, and say that this worker is through."""
        self._exchange(run)
        self.rows.write(self._row(run, DONE))
