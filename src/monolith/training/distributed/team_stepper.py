"""One step of a worker whose dense weights are those of all workers, after every step, to the byte.

Each worker learns from its own batch and pushes the gradients of its own rows; the gradients of the weights are added
up over all workers (the loss of a batch is a sum over its examples) before the optimizer sees them. Losses of layers,
which are there once however many examples there are, count one n-th at each of n workers. Clipping sees the sums of the
weights' gradients, and as norms of the rows' those of all workers' gradients together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from monolith.core.errors import TrainingDiverged
from monolith.features import PulledBatch
from monolith.training.distributed.dense_copy import pack_dense, take_dense
from monolith.training.distributed.team import RoundTotals, Team, TeamOver
from monolith.training.distributed.team_group import TeamChannels
from monolith.training.heads import Heads
from monolith.training.step import Gradients, Stepper, newest_time_s
from monolith.training.synchronous.shared_clipping import clip_shared
from monolith.training.synchronous.summed_weights import NO_HEADS, shared_objective, summed_gradients

__all__ = ["TeamStepper"]

_Learnt = tuple[list[nn.Parameter], list[Tensor], list[float]]
"""Weights, the sums of their gradients, and the sum of squares of each table's gradients."""


class TeamStepper(Stepper):
    """Computes the steps of one worker among those of a team; see ``Stepper``."""

    def __init__(self, *parts: Any, team: Team, size: int, **options: Any) -> None:
        super().__init__(*parts, **options)
        self._team = team
        self._size = size

    def compute(self, pulled: PulledBatch, step: int) -> tuple[Heads, Gradients]:
        """Run forward and backward of this worker's batch, and add up what all workers learnt.

        Raises:
            TeamOver: No worker has an example left.
            TrainingDiverged: A loss or a gradient is not finite, at any worker; nothing was changed.
        """
        failures: list[TrainingDiverged] = []
        heads, rows, squares = self._learnt_here(pulled, step, failures)
        try:
            learnt = self._team.together(lambda channels: self._add_up(channels, pulled, squares, failures, step))
        except TeamOver as over:
            raise TeamOver(is_out_of_data=not pulled.batch.size) from over
        if not self._team.totals.samples:
            raise TeamOver(is_out_of_data=True)
        # Others may have finished this round: then the weights are theirs, and only the rows are left to do.
        weights, sums, all_squares = ([], [], squares) if learnt is None else learnt
        dense, sparse = self._bounded(weights, sums, rows, all_squares, step)
        return heads, Gradients(step, newest_time_s(pulled), pulled.plan, dense, sparse)

    def apply_sparse(self, gradients: Gradients) -> None:
        """Push the gradients of the rows, where there are any."""
        if gradients.plan.occurrences:
            super().apply_sparse(gradients)

    # --- DenseState ---

    def pack(self) -> bytes:
        """Return weights and optimizers."""
        return pack_dense(self.model, self.optimizers)

    def take(self, packed: bytes) -> None:
        """Go on from those of another worker."""
        take_dense(packed, self.model, self.optimizers)

    # --- one round ---

    def _learnt_here(
        self, pulled: PulledBatch, step: int, failures: list[TrainingDiverged]
    ) -> tuple[Heads, list[Tensor], list[float]]:
        rows = [torch.zeros(each.shape) for each in pulled.rows]
        if not pulled.batch.size:
            self._forget_gradients()
            return NO_HEADS, rows, [0.0] * len(rows)
        try:
            heads, embedded = self._learn(pulled, step)
        except TrainingDiverged as error:
            failures.append(error)
            return NO_HEADS, rows, [0.0] * len(rows)
        rows = [new if each.grad is None else each.grad for new, each in zip(rows, embedded.rows, strict=True)]
        squares = embedded.squares or [0.0] * len(rows)  # of a loss that no row has a part in
        return heads, rows, list(squares)

    def _objective(self, heads: Heads) -> Tensor:
        return shared_objective(heads, 1 / self._size)

    def _add_up(
        self,
        channels: TeamChannels,
        pulled: PulledBatch,
        squares: Sequence[float],
        failures: list[TrainingDiverged],
        step: int,
    ) -> tuple[RoundTotals, _Learnt]:
        weights = list(self.model.parameters())
        wishes = self._team.wishes()
        own = [len(failures), pulled.batch.size, wishes.stops, wishes.holds, *squares]
        own += [each.grad is not None for each in weights]
        diverged, samples, stopping, holding, *rest = channels.words.sum(
            torch.tensor(own, dtype=torch.float64)
        ).tolist()
        if failures:
            raise failures.pop()  # an exception that a variable of its own frame holds would outlive everything
        if diverged:
            raise TrainingDiverged(f"step {step + 1}: the loss of another worker is not finite; see what it said")
        all_squares, has_gradient = rest[: len(squares)], rest[len(squares) :]
        learnt = [each for each, workers in zip(weights, has_gradient, strict=True) if workers]
        sums = summed_gradients(channels.gradients, learnt)
        totals = RoundTotals(samples=int(samples), stopping=int(stopping), holding=int(holding))
        return totals, (learnt, sums, all_squares)

    def _clip(
        self, dense: list[Tensor], sparse: list[Tensor], squares: Sequence[float], step: int
    ) -> tuple[list[Tensor], list[Tensor]]:
        return clip_shared(dense, sparse, torch.tensor(squares, dtype=torch.float32), self._clipping, step)
