"""Hooks that make a run one worker among several: wait for the chief, exchange dense weights, end together.

Workers train asynchronously. Each worker keeps its own dense optimizer. It adds the change of its weights to the
weights on the servers and continues from the sum. So the changes of every worker count in full, and a killed worker
takes none of them away. Buffers of layers (running statistics) belong to each worker; a checkpoint has the chief's.

NOTE: one session of a job

    chief                               servers (JobState)               worker i
      | restore a checkpoint                  |                             | wait_for_chief
      | write(UNKNOWN, new session) --------->|                             |
      | reset positions and file list         |                             |
      | add(own weights - shared) ----------->|                             |
      | write(READY) ------------------------>| ---------- READY ---------->| load the weights
      |                                       |<--------- write(READY) -----|
      | every exchange_steps: add(change), read entries, check the end      | likewise
      | write_pause(session) ---------------->| ---- paused_session ------->| write(PAUSED), poll
      | write_pause(0) ---------------------->| --------------------------->| write(READY), continue
      | end: write(STOPPING), or data ends    | --------------------------->| last add, write(DONE)
      | wait until all are DONE; load the weights; last checkpoint; write(DONE)

With a ``Lockstep`` coupling the weights are equal at all workers already. The chief only copies them to the servers.
The other workers only write their progress. The rounds of the group decide on pauses and the end.

The session number changes when the chief restores a checkpoint, and stays when a restarted chief finds a live training
on the servers. A worker that sees another session was left behind by a rollback.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from typing_extensions import override

from monolith.core.clock import Clock, Deadline
from monolith.core.errors import DataError, RpcTimeout
from monolith.training.cluster.coupling import Coupling, FreeRunning
from monolith.training.cluster.job_state import JobState, WorkerEntry, WorkerPhase, total_steps
from monolith.training.hooks.base import Hook
from monolith.training.run import Run, StepResult

__all__ = ["ChiefHook", "MemberHook", "WaitTimeouts", "WorkerHook", "wait_for_chief", "weights_of"]

logger = logging.getLogger(__name__)

_END_POLL_S = 0.2
_PAUSE_POLL_S = 0.5
_IDLE_POLL_S = 1.0
_STOPPING_S = 20.0
"""Cap of the final wait on a stop: ``chief_timeout_secs`` (30 minutes) would block on dead workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitTimeouts:
    """Timeouts of the waits of workers for each other."""

    restore_timeout_s: float
    """Wait of a worker for the chief to restore."""
    restore_poll_s: float
    """Interval of its reads."""
    chief_timeout_s: float
    """Wait of the chief at the end, since the last change of any other worker's entry."""


def weights_of(model: nn.Module) -> list[nn.Parameter]:
    """Return the weights that workers share."""
    return [weight for weight in model.parameters() if weight.requires_grad]


def wait_for_chief(
    state: JobState, index: int, timeouts: WaitTimeouts, clock: Clock, has_begun: Callable[[], bool] = lambda: True
) -> None:
    """Wait until the chief has restored.

    Args:
        state: The state of the job.
        index: The index of the worker that waits.
        timeouts: The limits of the wait.
        clock: Measures it.
        has_begun: Whether a worker has trained on these servers since their start. Before that, the entry of the chief
            belongs to an earlier job.

    Raises:
        RpcTimeout: The chief has not restored in time.
    """
    deadline = Deadline(clock, timeouts.restore_timeout_s)
    while not has_begun() or state.read()[0].phase not in (WorkerPhase.READY, WorkerPhase.STOPPING):
        if deadline.is_past:
            raise RpcTimeout(
                f"Timed out waiting for the chief to restore: worker {index} waited {timeouts.restore_timeout_s:g} s; "
                "check worker 0, or raise restore_sync_timeout_secs",
                retryable=False,
            )
        clock.sleep_s(timeouts.restore_poll_s)


class MemberHook(Hook):
    """The part that the chief and the other workers have in common: the exchange, and the end of the job.

    Args:
        open_state: Opens the state of the job for a run.
        index: The index of this worker.
        max_steps: Steps of all workers together at which the job ends; None = no limit.
        exchange_steps: Steps between two exchanges of weights.
        coupling: The dependence on the other workers; None = workers step alone.
    """

    def __init__(
        self,
        open_state: Callable[[Run], JobState],
        index: int,
        *,
        max_steps: int | None = None,
        exchange_steps: int = 1,
        coupling: Coupling | None = None,
    ) -> None:
        self._coupling: Coupling = FreeRunning() if coupling is None else coupling
        self._open_state = open_state
        self._index = index
        self._max_steps = max_steps
        self._exchange_steps = exchange_steps
        self._parameters: list[nn.Parameter] = []
        self._synced_weights = torch.empty(0)
        self._session = 0
        self._earlier_steps = 0
        self._steps_of_others = 0
        self._has_stopped_all = False
        self._idle_due_s = -math.inf
        self._on_new_session: Callable[[], None] | None = None
        self._run: Run | None = None
        self.state: JobState
        self._state_of_thread: JobState  # for the thread that calls ``is_over``

    @override
    def on_start(self, run: Run) -> None:
        self._parameters = weights_of(run.model)
        self.state, self._state_of_thread = self._open_state(run), self._open_state(run)
        self._run = run

    @property
    def session(self) -> int:
        """The session of the job; 0 before the run."""
        return self._session

    def is_over(self) -> bool:
        """Return whether the job ends for this worker. Another thread calls it while the loop waits for data."""
        if self._run is None:
            return False
        self._check_end(self._run, self._state_of_thread.read())
        return self._run.stop_reason is not None

    @property
    def steps_beside(self) -> int:
        """Steps of the job that this run has not taken: earlier ones, and those of other workers as last read.

        Lockstep workers all take the same steps, so the count is 0.
        """
        return 0 if self._coupling.is_lockstep else self._earlier_steps + self._steps_of_others

    def global_step(self) -> int:
        """Return the steps of all workers together."""
        return total_steps(self.state.read())

    @override
    def after_step(self, run: Run, result: StepResult) -> None:
        is_due = result.step % self._exchange_steps == 0
        entries = self._exchange(run) if is_due else []
        if not self._coupling.is_lockstep and is_due:
            self._check_end(run, self._wait_while_paused(run, entries))
        elif self._index and self._coupling.is_pausing:
            self._wait_while_paused(run, self.state.read())

    @override
    def on_idle(self, run: Run) -> None:
        """Follow the end of the job while the stream is idle."""
        now_s = run.clock.monotonic_s()
        if self._coupling.is_lockstep or now_s < self._idle_due_s:
            return
        self._idle_due_s = now_s + _IDLE_POLL_S
        self._check_end(run, self.state.read())

    def _wait_while_paused(self, run: Run, entries: list[WorkerEntry]) -> list[WorkerEntry]:
        """Wait while the job is paused. The chief is paused by its own run, so that it can save."""
        if not self._index or not self._is_paused(run, entries):
            return entries
        logger.info("worker paused worker=%d step=%d", self._index, run.step)
        self.state.write(self._entry(run, WorkerPhase.PAUSED))
        while self._is_paused(run, entries := self.state.read()):
            run.clock.sleep_s(_PAUSE_POLL_S)
        self.state.write(self._entry(run, WorkerPhase.READY))
        logger.info("worker resumed worker=%d step=%d", self._index, run.step)
        return entries

    def _is_paused(self, run: Run, entries: list[WorkerEntry]) -> bool:
        chief = entries[0]
        is_published = self.state.paused_session == chief.session != 0
        return is_published and run.stop_reason is None and chief.phase == WorkerPhase.READY

    def _check_end(self, run: Run, entries: list[WorkerEntry]) -> None:
        """Stop the run when the chief ends the job, or when all workers together have taken enough steps.

        Lockstep workers agree on the end in each round.
        """
        if self._coupling.is_lockstep:
            return
        self._note_others(entries)
        if self._index and entries[0].session != self._session:
            self._session = entries[0].session  # that of a restarted chief
            if self._on_new_session is not None:
                self._on_new_session()
        if self._index and entries[0].phase == WorkerPhase.STOPPING:
            run.stop("the chief ends the job")
        elif self._max_steps is not None and total_steps(entries) >= self._max_steps:
            run.stop(f"all workers together have taken {total_steps(entries)} steps")
        self._note_limit(entries)

    def _note_others(self, entries: list[WorkerEntry]) -> None:
        self._steps_of_others = total_steps(entries) - entries[self._index].steps

    def _note_limit(self, entries: list[WorkerEntry]) -> None:
        """Remember that ``max_steps`` ends the job; lockstep workers reach it together."""
        is_reached = self._max_steps is not None and total_steps(entries) >= self._max_steps
        self._has_stopped_all = self._has_stopped_all or (is_reached and not self._coupling.is_lockstep)

    def _entry(self, run: Run, phase: WorkerPhase) -> WorkerEntry:
        return WorkerEntry(phase, self._session, run.step + self._earlier_steps)

    def _exchange(self, run: Run) -> list[WorkerEntry]:
        """Add the change of the weights since the last exchange, load the sum, and return the entries.

        In lockstep the chief copies its weights to the servers and loads none; other workers only write their progress.
        """
        entry = self._entry(run, WorkerPhase.READY)
        if self._coupling.is_lockstep and self._index:
            self.state.write(entry)
            return []
        change = self._vector() - self._synced_weights
        weights, entries = self.state.add(change.numpy(), entry)
        if self._coupling.is_lockstep:
            self._synced_weights = torch.from_numpy(weights)
        else:
            self._load_weights(torch.from_numpy(weights))
        return entries

    def _vector(self) -> torch.Tensor:
        """Return the weights of this worker as one vector."""
        if not self._parameters:
            return torch.empty(0)
        return torch.cat([weight.detach().reshape(-1).to("cpu", torch.float32) for weight in self._parameters])

    @torch.no_grad()
    def _load_weights(self, weights: torch.Tensor) -> None:
        """Continue from shared weights."""
        self._synced_weights = weights.clone()
        begin = 0
        for weight in self._parameters:
            end = begin + weight.numel()
            weight.copy_(weights[begin:end].view_as(weight))
            begin = end


class ChiefHook(MemberHook):
    """Worker 0: publishes its weights once it has restored, and waits for the others at the end.

    Args:
        open_state: Opens the state of the job for a run.
        is_live: Whether the servers hold a live training: the chief then loads its weights instead of publishing.
        on_restored: Called when the servers hold no live training, before the workers begin.
        unread: Returns the workers with data that they have not read.
        timeouts: Timeouts of the waits.
        max_steps: Steps of all workers together at which the job ends; None = no limit.
        exchange_steps: Steps between two exchanges of weights.
        coupling: The dependence on the other workers; None = workers step alone.
    """

    def __init__(
        self,
        open_state: Callable[[Run], JobState],
        *,
        is_live: Callable[[], bool],
        on_restored: Callable[[], None],
        unread: Callable[[], Sequence[int]] = tuple,
        timeouts: WaitTimeouts,
        max_steps: int | None = None,
        exchange_steps: int = 1,
        coupling: Coupling | None = None,
    ) -> None:
        super().__init__(open_state, 0, max_steps=max_steps, exchange_steps=exchange_steps, coupling=coupling)
        self._is_live = is_live
        self._on_restored = on_restored
        self._unread = unread
        self._timeouts = timeouts

    @override
    def on_start(self, run: Run) -> None:
        super().on_start(run)
        weights, entries = self.state.weights()
        is_live = self._session != 0 or self._is_live()
        self._session = entries[0].session if is_live else 1 + secrets.randbelow(1 << 22)
        shared = torch.from_numpy(weights)
        if not is_live:
            # The restored checkpoint may contain a READY chief; workers must wait until the weights are published.
            self.state.write(self._entry(run, WorkerPhase.UNKNOWN))
            self._on_restored()
            change = self._vector() - shared
            weights, entries = self.state.add(change.numpy(), self._entry(run, WorkerPhase.READY))
            shared = torch.from_numpy(weights)
        self._load_weights(shared)
        self._note_others(entries)
        self.state.write(self._entry(run, WorkerPhase.READY))
        if self.state.paused_session == self._session:
            run.pause()  # the previous chief had paused the workers
        self._coupling.begin(self._open_state(run), lambda: self._session)

    @override
    def before_end(self, run: Run) -> None:
        entries = self._exchange(run)
        self._coupling.end()
        self._note_limit(entries)
        stops_all = run.stop_reason is not None and not self._has_stopped_all
        self.state.write(self._entry(run, WorkerPhase.STOPPING if stops_all else WorkerPhase.READY))
        limit_s = self._timeouts.chief_timeout_s
        self._wait_for_workers(run, min(limit_s, _STOPPING_S) if stops_all else limit_s)
        weights, entries = self.state.weights()
        if total_steps(entries) == 0 and run.stop_reason is None:
            raise DataError("the data gave no batch to any worker; check the patterns and filters")
        self._note_limit(entries)
        if run.stop_reason is None and not self._has_stopped_all and (unread := self._unread()):
            logger.warning("job ended with unread data of workers; run the job again workers=%s", unread)
        if not self._coupling.is_lockstep:  # the weights of a lockstep chief are those of all workers
            self._load_weights(torch.from_numpy(weights))
        # Part of the checkpoint: a job that restores it starts a new session.
        self.state.write(self._entry(run, WorkerPhase.STOPPING if stops_all else WorkerPhase.DONE))

    def _wait_for_workers(self, run: Run, timeout_s: float) -> None:
        timeout_s = self._coupling.limit_end_wait_s(timeout_s)
        deadline, entries = Deadline(run.clock, timeout_s), self.state.read()[1:]
        done = (WorkerPhase.DONE, self._session)
        while missing := [i for i, entry in enumerate(entries, 1) if (entry.phase, entry.session) != done]:
            if deadline.is_past:
                logger.warning("job ended without workers missing=%s timeout_s=%g", missing, timeout_s)
                return
            run.clock.sleep_s(_END_POLL_S)
            before, entries = entries, self.state.read()[1:]
            if entries != before:
                deadline = Deadline(run.clock, timeout_s)


class WorkerHook(MemberHook):
    """Any other worker: starts from the weights that the chief has published (see ``wait_for_chief``).

    Args:
        open_state: Opens the state of the job for a run.
        index: The index of this worker, from 1.
        max_steps: Steps of all workers together at which the job ends; None = no limit.
        exchange_steps: Steps between two exchanges of weights.
        on_new_session: Called when the chief has started another session, with rolled back servers; None = continue.
        coupling: The dependence on the other workers; None = workers step alone.
    """

    def __init__(
        self,
        open_state: Callable[[Run], JobState],
        index: int,
        *,
        max_steps: int | None = None,
        exchange_steps: int = 1,
        on_new_session: Callable[[], None] | None = None,
        coupling: Coupling | None = None,
    ) -> None:
        super().__init__(open_state, index, max_steps=max_steps, exchange_steps=exchange_steps, coupling=coupling)
        self._on_new_session = on_new_session

    @override
    def on_start(self, run: Run) -> None:
        super().on_start(run)
        entries = self.state.read()
        self._session = entries[0].session
        self._earlier_steps = max(0, entries[self._index].steps - run.step)
        weights, _ = self.state.weights()
        self._load_weights(torch.from_numpy(weights))
        self.state.write(self._entry(run, WorkerPhase.READY))
        self._check_end(run, entries)
        if self._coupling.is_lockstep:
            self._earlier_steps = 0
        self._coupling.begin(self._open_state(run), lambda: self._session)

    @override
    def before_end(self, run: Run) -> None:
        self._exchange(run)
        self.state.write(self._entry(run, WorkerPhase.DONE))
