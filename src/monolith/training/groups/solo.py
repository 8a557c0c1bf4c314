"""``Solo``: a process that trains alone, or beside other workers without waiting for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from monolith.core.clock import Clock
from monolith.embedding import EmbeddingStore, MultiTable, TableSpec
from monolith.features import PulledBatch
from monolith.features.declaration import Declaration
from monolith.training.checkpoints import Checkpointer
from monolith.training.config import CheckpointConfig, RunConfig, SaveTimer
from monolith.training.groups.base import (
    ControlFlags,
    Decision,
    Group,
    GroupGradients,
    LocalGradients,
    MemberPosition,
    MemberWeights,
    StoreSource,
)
from monolith.training.run import HeadResult

__all__ = ["Solo"]


class Solo(Group):
    """The group of one process. Every request takes effect without agreement."""

    @property
    @override
    def rank(self) -> int:
        return 0

    @property
    @override
    def size(self) -> int:
        return 1

    @property
    @override
    def is_lockstep(self) -> bool:
        return False

    @property
    @override
    def is_one_run(self) -> bool:
        return False

    # --- Estimator ---

    @override
    def member_config(self, config: RunConfig) -> RunConfig:
        return config

    @override
    def open_store(
        self, store: StoreSource, specs: Sequence[TableSpec], *, force_expiry: bool = False
    ) -> EmbeddingStore:
        if store is None:
            return MultiTable(specs, force_expiry=force_expiry)
        if isinstance(store, EmbeddingStore) and not isinstance(store, type):  # a class has the methods too
            return store
        make: Any = store
        opened: EmbeddingStore = make(specs)
        return opened

    @override
    def make_checkpointer(
        self, model_dir: str | Path, config: CheckpointConfig, *, clock: Clock, timer: SaveTimer, dense_timer: SaveTimer
    ) -> Checkpointer:
        return Checkpointer(model_dir, config, clock=clock, timer=timer, dense_timer=dense_timer)

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
    def align(self, dataset: Any, declaration: Declaration) -> Any:
        return dataset

    @override
    def join(self, dense: MemberWeights, step: int, flags: Callable[[], ControlFlags]) -> int:
        return step

    @override
    def agree(self, flags: ControlFlags) -> Decision:
        return Decision(stop_reason=flags.stop_reason, pauses=flags.pauses, saves=flags.saves)

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
        return 1.0

    @override
    def combine(self, local: LocalGradients) -> GroupGradients:
        if local.failures:
            raise local.failures.pop()
        weights = [weight for weight in local.weights if weight.grad is not None]
        return GroupGradients(
            weights=weights,
            grads=[weight.grad for weight in weights if weight.grad is not None],
            rows=local.rows,
            squares=local.squares,
            totals=local.heads.totals(local.pulled.batch, ids=local.pulled.plan.occurrences),
        )
