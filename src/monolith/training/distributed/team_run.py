"""The training loop of a worker that steps together with the others: begun, held and ended at the same step by all.

What any worker is asked for (by a signal, a hook, the controller) is told in the next round, and all do it after that
step. The chief saves, as it does among workers that do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from monolith.data import Batch
from monolith.features.declaration import Declaration
from monolith.training.distributed.team import Team, TeamOver, Wishes
from monolith.training.distributed.team_stepper import TeamStepper
from monolith.training.estimator import Estimator
from monolith.training.loop import TrainingRun
from monolith.training.step import Stepper
from monolith.training.synchronous.peer_batches import empty_batch

__all__ = ["TeamBatches", "TeamEstimator", "TeamRun"]


class TeamBatches:
    """The data of one worker, and after it batches without an example, until no worker has any left.

    Args:
        dataset: This worker's part.
        declaration: What a batch of the model holds.
    """

    def __init__(self, dataset: Any, declaration: Declaration) -> None:
        self._dataset = dataset
        self._declaration = declaration

    def __iter__(self) -> Iterator[Batch]:
        """Read without an end."""
        yield from self._dataset
        while True:
            yield empty_batch(self._declaration)

    def mark(self) -> Callable[[], Any]:
        """Return what gives the place behind the last batch with examples."""
        mark: Callable[[], Any] = getattr(self._dataset, "mark", lambda: lambda: None)()
        return mark

    def committed(self, place: Any) -> None:
        """Pass on that a place is safe in a checkpoint."""
        self._dataset.committed(place)


class TeamRun(TrainingRun):
    """One call of ``TeamEstimator.train``; see ``TrainingRun``.

    Args:
        team: All workers.
        is_current: Whether this worker's weights are what the training stands at when it begins.
        may_hold: Whether the others know already that they are to stand still.
        parts: See ``TrainingRun``.
    """

    def __init__(
        self,
        *,
        team: Team,
        is_current: Callable[[], bool],
        may_hold: Callable[[], bool],
        stepper: TeamStepper,
        dataset: Any,
        **parts: Any,
    ) -> None:
        super().__init__(stepper=stepper, dataset=TeamBatches(dataset, stepper.embedder.declaration), **parts)
        self._team = team
        self._team_stepper = stepper
        self._is_current = is_current
        self._may_hold = may_hold
        self._own_reason: str | None = None
        self._wants_hold = False
        team.wishes = self._wishes

    def stop(self, reason: str) -> None:
        """End the run of all workers after the next step; those that stand still end at once."""
        with self._asked:
            self._own_reason = self._own_reason or reason
            self._is_held = False
            self._asked.notify_all()

    def pause(self) -> bool:
        """Hold all workers after the next step; False when they are held already."""
        with self._asked:
            was, self._wants_hold = self._wants_hold, True
            return not was

    def resume(self) -> None:
        """Let the loop go on."""
        with self._asked:
            self._wants_hold = False
        super().resume()

    def _wishes(self) -> Wishes:
        return Wishes(stops=self._own_reason is not None, holds=self._wants_hold and self._may_hold())

    def _run_steps(self, until: int | None) -> None:
        try:
            self._team.join(self._team_stepper, self._step, is_current=self._is_current())
            self._step = self._first_step = self._team.rounds
            super()._run_steps(until)
        except TeamOver as over:
            if over.is_out_of_data:
                self._end_data()
            else:
                self.stop_reason = self._own_reason or "the training has ended for all workers"

    def _obey(self) -> None:
        totals = self._team.totals
        with self._asked:
            self._is_held = self._wants_hold and totals.holding > 0 and self._own_reason is None
        super()._obey()
        if totals.stopping or (totals.holding and self._own_reason is not None):
            self.stop_reason = self._own_reason or "another worker ends the run"


class TeamEstimator(Estimator):
    """An estimator whose dense weights are those of all workers; see ``Estimator``.

    Args:
        parts: See ``Estimator``.
        team: All workers.
        size: How many they are.
        is_current: See ``TeamRun``.
        may_hold: See ``TeamRun``.
        options: See ``Estimator``.
    """

    def __init__(
        self,
        *parts: Any,
        team: Team,
        size: int,
        is_current: Callable[[], bool],
        may_hold: Callable[[], bool] = lambda: True,
        **options: Any,
    ) -> None:
        self._team = team
        self._size = size
        self._is_current = is_current
        self._may_hold = may_hold
        super().__init__(*parts, **options)

    def _make_stepper(self, *parts: Any, **options: Any) -> Stepper:
        return TeamStepper(*parts, team=self._team, size=self._size, **options)

    def _make_run(self, **parts: Any) -> TrainingRun:
        return TeamRun(team=self._team, is_current=self._is_current, may_hold=self._may_hold, **parts)
