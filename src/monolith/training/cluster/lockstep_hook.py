"""Hooks of partially synchronous workers, beside their steps.

The weights are equal at all workers already. The chief keeps a copy of them on the servers, for a job whose workers are
all lost and for the last checkpoint. Every worker writes its progress there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from typing_extensions import override

from monolith.training.cluster.job_state import JobState, WorkerEntry, WorkerPhase
from monolith.training.cluster.worker_hook import ChiefHook, WorkerHook
from monolith.training.groups.workers import SyncGroup
from monolith.training.run import Run, StepResult

__all__ = ["LockstepChiefHook", "LockstepWorkerHook"]

_MISSING_S = 5.0


class LockstepChiefHook(ChiefHook):
    """Worker 0 of partially synchronous workers; see ``ChiefHook``.

    Args:
        open_state: Opens the state of the job for a run.
        sync: The connections to all workers.
        options: See ``ChiefHook``.
    """

    def __init__(self, open_state: Callable[[Run], JobState], *, sync: SyncGroup, **options: Any) -> None:
        super().__init__(open_state, **options)
        self._sync = sync

    @override
    def on_start(self, run: Run) -> None:
        super().on_start(run)
        self._sync.rendezvous.begin(self._open_state(run), lambda: self._session)

    @override
    def before_end(self, run: Run) -> None:
        """Announce the end of training, also to workers disconnected in the last step; then wait for all workers."""
        self._exchange(run)
        self._sync.rendezvous.end()
        self._sync.leave()
        super().before_end(run)

    @property
    @override
    def steps_beside(self) -> int:
        """Return 0: all workers take the same steps."""
        return 0

    @override
    def _exchange(self, run: Run) -> list[WorkerEntry]:
        """Copy the weights to the servers; load none from there."""
        change = self._vector() - self._synced_weights
        weights, entries = self.state.add(change.numpy(), self._entry(run, WorkerPhase.READY))
        self._synced_weights = torch.from_numpy(weights)
        return entries

    @override
    def _check_end(self, run: Run, entries: list[WorkerEntry]) -> None:
        """Do nothing: the workers agree on the end in each round."""

    @override
    def _note_limit(self, entries: list[WorkerEntry]) -> None:
        """Do nothing: all workers reach ``max_steps`` together."""

    @override
    def _wait_for_workers(self, run: Run, timeout_s: float) -> None:
        """Wait only briefly for a worker that never joined, so that workers that wait for it exit promptly."""
        super()._wait_for_workers(run, min(timeout_s, _MISSING_S) if self._sync.is_incomplete else timeout_s)

    @override
    def _load_last_weights(self, weights: torch.Tensor) -> None:
        """Do nothing: the weights of the chief are those of all workers."""


class LockstepWorkerHook(WorkerHook):
    """Any other partially synchronous worker; see ``WorkerHook``.

    Args:
        open_state: Opens the state of the job for a run.
        index: The index of this worker.
        sync: The connections to all workers.
        options: See ``WorkerHook``.
    """

    def __init__(self, open_state: Callable[[Run], JobState], index: int, *, sync: SyncGroup, **options: Any) -> None:
        super().__init__(open_state, index, **options)
        self._sync = sync

    @override
    def on_start(self, run: Run) -> None:
        super().on_start(run)
        self._earlier_steps = 0
        self._sync.rendezvous.begin(self._open_state(run), lambda: self._session)

    @override
    def after_step(self, run: Run, result: StepResult) -> None:
        """Write the progress of this worker, and wait while the job is paused."""
        if result.step % self._exchange_steps == 0:
            self._exchange(run)
        if self._sync.totals.pausing:
            self._wait_while_paused(run, self.state.read())

    @property
    @override
    def steps_beside(self) -> int:
        """Return 0: all workers take the same steps."""
        return 0

    @override
    def _exchange(self, run: Run) -> list[WorkerEntry]:
        self.state.write(self._entry(run, WorkerPhase.READY))
        return []

    @override
    def _check_end(self, run: Run, entries: list[WorkerEntry]) -> None:
        """Do nothing: the workers agree on the end in each round."""
