"""``Workers``: the group of partially synchronous workers, whose tables are on parameter servers.

Each worker pushes the row gradients of its batch. The gradients of the dense weights are summed over all workers before
the optimizer gets them, so the weights are equal to the byte after every step. Each of n workers counts layer losses
by 1/n. Clipping uses the summed gradients of the weights, and the norms of the row gradients of all workers.

A request at any worker travels with the next step, and takes effect at all workers after it. The chief saves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from monolith.core.clock import Clock
from monolith.embedding import EmbeddingStore, TableSpec
from monolith.features import PulledBatch
from monolith.features.declaration import Declaration
from monolith.training.checkpoints import Checkpointer
from monolith.training.config import CheckpointConfig, RunConfig, SaveTimer
from monolith.training.groups.aligned_batches import PaddedBatches
from monolith.training.groups.base import (
    ControlFlags,
    Decision,
    Group,
    GroupClosed,
    GroupGradients,
    LocalGradients,
    MemberPosition,
    MemberWeights,
    StoreSource,
)
from monolith.training.groups.solo import Solo
from monolith.training.groups.summed_gradients import sum_step
from monolith.training.groups.workers.connections import WorkerChannels
from monolith.training.groups.workers.dense_copy import load_dense, pack_dense
from monolith.training.groups.workers.sync_group import RoundTotals, SyncGroup
from monolith.training.run import HeadResult

__all__ = ["Workers"]


class Workers(Group):
    """All partially synchronous workers of one training, as one of them sees them.

    Args:
        sync: The connections to the other workers.
        rank: The index of this worker.
        size: The number of workers.
        is_current: Whether this worker's weights are those of the training when its run begins.
        may_pause: Whether the pause of the job is published, so that the other workers will pause too.
    """

    def __init__(
        self,
        sync: SyncGroup,
        *,
        rank: int,
        size: int,
        is_current: Callable[[], bool],
        may_pause: Callable[[], bool] = lambda: True,
    ) -> None:
        self._sync = sync
        self._rank = rank
        self._size = size
        self._is_current = is_current
        self._may_pause = may_pause
        self._solo = Solo()

    @property
    @override
    def rank(self) -> int:
        return self._rank

    @property
    @override
    def size(self) -> int:
        return self._size

    @property
    @override
    def is_lockstep(self) -> bool:
        return True

    @property
    @override
    def is_one_run(self) -> bool:
        return False

    # --- Estimator: each worker has its own, like a process alone ---

    @override
    def member_config(self, config: RunConfig) -> RunConfig:
        return config

    @override
    def open_store(
        self, store: StoreSource, specs: Sequence[TableSpec], *, force_expiry: bool = False
    ) -> EmbeddingStore:
        return self._solo.open_store(store, specs, force_expiry=force_expiry)

    @override
    def make_checkpointer(
        self, model_dir: str | Path, config: CheckpointConfig, *, clock: Clock, timer: SaveTimer, dense_timer: SaveTimer
    ) -> Checkpointer:
        return self._solo.make_checkpointer(model_dir, config, clock=clock, timer=timer, dense_timer=dense_timer)

    @override
    def restore_member(self, extra: Mapping[str, Any], seed: int) -> MemberPosition | None:
        return None

    @override
    def check_resume(self, extra: Mapping[str, Any], step: int) -> None:
        return

    @override
    def share_metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        return metrics

    # --- TrainingRun ---

    @override
    def align(self, dataset: Any, declaration: Declaration) -> PaddedBatches:
        return PaddedBatches(dataset, declaration)

    @override
    def join(self, dense: MemberWeights, step: int, flags: Callable[[], ControlFlags]) -> int:
        self._sync.flags = flags
        self._sync.join(_PackedDense(dense), step, is_current=self._is_current())
        return self._sync.rounds

    @override
    def agree(self, flags: ControlFlags) -> Decision:
        totals = self._sync.totals
        pauses = totals.pausing > 0
        stop_reason = None
        if totals.stopping or (pauses and flags.stops):  # paused workers end without another step
            stop_reason = flags.stop_reason or "another worker ends the run"
        return Decision(stop_reason=stop_reason, pauses=flags.pauses and pauses and not flags.stops, saves=flags.saves)

    @override
    def gather_heads(self, heads: Mapping[str, HeadResult]) -> Mapping[str, HeadResult]:
        return heads

    @override
    def gather_positions(self, position: Any, data_ended: bool) -> None:
        return

    @override
    def checkpoint_extra(self) -> dict[str, Any]:
        return {}

    # --- Stepper ---

    @override
    def begin_step(self, pulled: PulledBatch, dense: MemberWeights) -> float:
        return 1 / self._size

    @override
    def combine(self, local: LocalGradients) -> GroupGradients:
        batch = local.pulled.batch
        try:
            learned = self._sync.run_round(lambda channels: self._sum(channels, local))
        except GroupClosed as closed:
            raise GroupClosed(is_out_of_data=not batch.size) from closed
        if not self._sync.totals.samples:
            raise GroupClosed(is_out_of_data=True)
        # Other workers may have finished this round: then the weights are theirs, and only the rows remain to push.
        weights, grads, squares = ([], [], local.squares) if learned is None else learned
        return GroupGradients(
            weights=weights,
            grads=grads,
            rows=local.rows,
            squares=squares,
            totals=local.heads.totals(batch, ids=local.pulled.plan.occurrences),
        )

    def _sum(
        self, channels: WorkerChannels, local: LocalGradients
    ) -> tuple[RoundTotals, tuple[list[nn.Parameter], list[Tensor], list[float]]]:
        flags = self._sync.flags()
        numbers = [local.pulled.batch.size, flags.stops, flags.pauses and self._may_pause(), *local.squares]
        sums, weights, grads = sum_step(channels.words, channels.gradients, local, numbers, "worker")
        samples, stopping, pausing, *squares = sums
        totals = RoundTotals(samples=int(samples), stopping=int(stopping), pausing=int(pausing))
        return totals, (weights, grads, squares)


class _PackedDense:
    """The dense part of one worker as bytes, for the worker that joins or rejoins."""

    def __init__(self, dense: MemberWeights) -> None:
        self._dense = dense

    def pack(self) -> bytes:
        """Return weights and optimizer states."""
        return pack_dense(self._dense.model, self._dense.optimizers)

    def load(self, packed: bytes) -> None:
        """Replace them by those of another worker."""
        load_dense(packed, self._dense.model, self._dense.optimizers)
