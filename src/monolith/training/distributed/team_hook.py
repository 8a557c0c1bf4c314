"""What a worker that steps together with others does beside its steps.

The weights are the same at all workers already. The chief keeps a copy of them on the servers, for a job whose workers
are all lost, and for the last checkpoint; everybody says there where it stands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from monolith.training.distributed.shared_rows import READY, SharedRows, WorkerRow
from monolith.training.distributed.worker_hook import ChiefHook, WorkerHook
from monolith.training.groups.workers import SyncGroup
from monolith.training.run import Run, StepResult

__all__ = ["TeamChiefHook", "TeamWorkerHook"]

_MISSING_S = 5.0


class TeamChiefHook(ChiefHook):
    """Worker 0 of a team; see ``ChiefHook``.

    Args:
        rows: Opens the shared tables.
        sync: The connections to all workers.
        options: See ``ChiefHook``.
    """

    def __init__(self, rows: Callable[[Run], SharedRows], *, sync: SyncGroup, **options: Any) -> None:
        super().__init__(rows, **options)
        self._sync = sync

    def on_start(self, run: Run) -> None:
        """Publish the weights, or take over those of a training that goes on."""
        super().on_start(run)
        self._sync.rendezvous.begin(self._open_rows(run), lambda: self._session)

    def before_end(self, run: Run) -> None:
        """Say that the training has ended, also to who has lost the others in its last step; then wait for all."""
        self._exchange(run)
        self._sync.rendezvous.end()
        self._sync.leave()
        super().before_end(run)

    @property
    def steps_beside(self) -> int:
        """None: all workers take the same steps."""
        return 0

    def _exchange(self, run: Run) -> list[WorkerRow]:
        """Copy the weights to the servers; nothing comes from there."""
        weights, rows = self.rows.add((self._vector() - self._known).numpy(), self._row(run, READY))
        self._known = torch.from_numpy(weights)
        return rows

    def _obey(self, run: Run, rows: list[WorkerRow]) -> None:
        """Rounds say when to stop."""

    def _note_limit(self, rows: list[WorkerRow]) -> None:
        """So do they with ``max_steps``, which all workers reach at once."""

    def _wait_for_workers(self, run: Run, timeout_s: float) -> None:
        """One that has not come to the others will not come now; who waits for it is told of the end, and quick."""
        super()._wait_for_workers(run, min(timeout_s, _MISSING_S) if self._sync.is_incomplete else timeout_s)

    def _take_last(self, weights: torch.Tensor) -> None:
        """The own weights are those of all."""


class TeamWorkerHook(WorkerHook):
    """Any other worker of a team; see ``WorkerHook``.

    Args:
        rows: Opens the shared tables.
        index: Which worker.
        sync: The connections to all workers.
        options: See ``WorkerHook``.
    """

    def __init__(self, rows: Callable[[Run], SharedRows], index: int, *, sync: SyncGroup, **options: Any) -> None:
        super().__init__(rows, index, **options)
        self._sync = sync

    def on_start(self, run: Run) -> None:
        """Say that this worker is there."""
        super().on_start(run)
        self._earlier_steps = 0
        self._sync.rendezvous.begin(self._open_rows(run), lambda: self._session)

    def after_step(self, run: Run, result: StepResult) -> None:
        """Say where this worker stands, and stand still when all do."""
        if result.step % self._exchange_steps == 0:
            self._exchange(run)
        if self._sync.totals.pausing:
            self._stand_still(run, self.rows.read())

    @property
    def steps_beside(self) -> int:
        """None: all workers take the same steps."""
        return 0

    def _exchange(self, run: Run) -> list[WorkerRow]:
        self.rows.write(self._row(run, READY))
        return []

    def _obey(self, run: Run, rows: list[WorkerRow]) -> None:
        """Rounds say when to stop."""
