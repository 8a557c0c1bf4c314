"""``Ranks``: the group of processes that ``torchrun`` or the like has started, each with a shard of every table.

A step of several ranks is the step of one process with their batches concatenated: gradients are summed, and each rank
counts layer losses by its share of the examples. Rank 0 measures all ranks and decides when a checkpoint is due. A
request at any rank takes effect at all ranks, at the next step boundary.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from typing_extensions import override

from monolith.core.clock import Clock
from monolith.core.config_sections import replace_settings
from monolith.core.errors import ConfigError, DataError
from monolith.embedding import EmbeddingStore, TableSpec
from monolith.embedding.ranks.rank_store import OwnGradients, RankStore
from monolith.embedding.ranks.row_request import SummedRows
from monolith.features import PulledBatch
from monolith.features.declaration import Declaration
from monolith.training.checkpoints import Checkpointer, random_states
from monolith.training.config import CheckpointConfig, RunConfig, SaveTimer
from monolith.training.groups.aligned_batches import AlignedBatches, StepSizes
from monolith.training.groups.base import (
    ControlFlags,
    Decision,
    DueSave,
    Group,
    GroupGradients,
    LocalGradients,
    MemberPosition,
    MemberWeights,
    StoreSource,
)
from monolith.training.groups.ranks.connection import RankConnection
from monolith.training.groups.ranks.head_bytes import join_heads, read_heads, write_heads
from monolith.training.groups.ranks.rank_checkpoints import FollowingCheckpointer, LeadingCheckpointer
from monolith.training.groups.summed_gradients import sum_step
from monolith.training.heads import StepTotals
from monolith.training.run import HeadResult

__all__ = ["Ranks"]


class Ranks(Group):
    """All ranks of one training, as one of them sees them. One estimator has one of these.

    Every rank reads its own part of the data. All ranks make the same calls of the estimator, in the same order, with
    the same model and settings.

    Args:
        connection: The channels to all ranks; several groups may use it one after the other.
        half: Whether rows and gradients of tables travel as float16; see ``RankStore``.
    """

    def __init__(self, connection: RankConnection, *, half: bool = False) -> None:
        self._connection = connection
        self._half = half
        self._steps = connection.steps
        self._store: RankStore
        self._sizes: StepSizes = deque()
        self._samples = 0
        self._are_weights_shared = False
        self._members: list[dict[str, Any]] = []

    @property
    @override
    def rank(self) -> int:
        return self._connection.rank

    @property
    @override
    def size(self) -> int:
        return self._connection.size

    @property
    @override
    def is_lockstep(self) -> bool:
        return True

    @property
    @override
    def is_one_run(self) -> bool:
        return True

    # --- Estimator ---

    @override
    def member_config(self, config: RunConfig) -> RunConfig:
        """Return the settings of one rank: every rank except 0 is silent, and leaves the folder to rank 0."""
        if config.runtime.accelerator == "cuda" and config.pipeline.embedding_prefetch_capacity:
            raise ConfigError(
                f"embedding_prefetch_capacity is {config.pipeline.embedding_prefetch_capacity}, expected 0 for ranks "
                "on GPUs, which pull rows in their step"
            )
        if config.runtime.num_workers not in (1, self.size) or config.runtime.index not in (0, self.rank):
            raise ConfigError(
                f"index is {config.runtime.index} of num_workers {config.runtime.num_workers}, expected rank "
                f"{self.rank} of {self.size}; omit both"
            )
        placed = replace_settings(config, index=self.rank, num_workers=self.size)
        if self.rank == 0:
            return placed
        return replace_settings(
            placed,
            model_dir="",
            log_step_count_steps=0,
            save_summary_steps=0,
            progress=False,
            metrics_port=None,
            logger=None,
            logger_offline=False,
            controller_port=None,
            profile_some_steps_from=None,
        )

    @override
    def open_store(
        self, store: StoreSource, specs: Sequence[TableSpec], *, force_expiry: bool = False
    ) -> EmbeddingStore:
        if store is not None:
            raise ConfigError(f"store is {store!r}, expected None for Ranks, which hold the rows; omit it")
        self._store = RankStore(self._connection, specs, force_expiry=force_expiry, half=self._half)
        return self._store

    @override
    def make_checkpointer(
        self, model_dir: str | Path, config: CheckpointConfig, *, clock: Clock, timer: SaveTimer, dense_timer: SaveTimer
    ) -> Checkpointer:
        if self.rank:
            return FollowingCheckpointer(model_dir, config, connection=self._connection, clock=clock)
        return LeadingCheckpointer(
            model_dir, config, connection=self._connection, clock=clock, timer=timer, dense_timer=dense_timer
        )

    @override
    def restore_member(self, extra: Mapping[str, Any], seed: int) -> MemberPosition | None:
        ranks = extra.get("ranks", [])
        if len(ranks) == self.size:
            own = ranks[self.rank]
            random_states.decode(own["random"])
            return MemberPosition(position=own["place"], data_ended=bool(own["data_ended"]))
        if self.rank:
            _seed(seed + self.rank)  # dropout must differ between ranks
        return None

    @override
    def check_resume(self, extra: Mapping[str, Any], step: int) -> None:
        saved = len(extra.get("ranks", [])) or 1
        if extra and saved != self.size:
            raise DataError(
                f"the checkpoint of step {step} was saved by {saved} ranks, expected {self.size}: their positions in "
                "the data do not fit. To start at the beginning of the data: resume_data=False"
            )

    @override
    def share_metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        shared: dict[str, float] = json.loads(self._steps.broadcast_bytes(json.dumps(metrics).encode()))
        return shared

    # --- TrainingRun ---

    @override
    def align(self, dataset: Any, declaration: Declaration) -> AlignedBatches:
        self._sizes.clear()
        return AlignedBatches(dataset, declaration, self._steps, self._sizes)

    @override
    def join(self, dense: MemberWeights, step: int, flags: Callable[[], ControlFlags]) -> int:
        return step

    @override
    def agree(self, flags: ControlFlags) -> Decision:
        every = self._steps.all_gather_ints([flags.due, flags.saves, flags.stops, flags.pauses])
        stopping = ", ".join(str(rank) for rank in np.flatnonzero(every[:, 2]))
        return Decision(
            stop_reason=(flags.stop_reason or f"rank {stopping} ends the run") if stopping else None,
            pauses=bool(every[:, 3].any()),
            saves=bool(every[:, 1].any()),
            due=DueSave(int(every[0, 0])),
        )

    @override
    def gather_heads(self, heads: Mapping[str, HeadResult]) -> Mapping[str, HeadResult] | None:
        gathered = self._steps.gather_bytes(write_heads(heads))
        return join_heads([read_heads(each) for each in gathered]) if self.rank == 0 else None

    @override
    def gather_positions(self, position: Any, data_ended: bool) -> None:
        own = {"place": position, "data_ended": data_ended, "random": random_states.encode()}
        self._members = [json.loads(each) for each in self._steps.gather_bytes(json.dumps(own).encode())]

    @override
    def checkpoint_extra(self) -> dict[str, Any]:
        return {"ranks": self._members}

    # --- Stepper ---

    @override
    def begin_step(self, pulled: PulledBatch, dense: MemberWeights) -> float:
        if not self._are_weights_shared:
            self._share_weights(pulled, dense)
        self._samples = sum(self._sizes.popleft())
        return pulled.batch.size / max(1, self._samples)

    @override
    def combine(self, local: LocalGradients) -> GroupGradients:
        numbers = [local.loss, local.pulled.plan.occurrences]
        (loss, ids), weights, grads = sum_step(self._steps, self._steps, local, numbers, "rank")
        for weight, gradient in zip(weights, grads, strict=True):
            weight.grad = gradient
        rows = _RankRows(self._store, self._collect(local))
        return GroupGradients(
            weights=weights,
            grads=grads,
            rows=rows,
            squares=self._sum_squares(rows.grads),
            totals=StepTotals(loss=loss, samples=self._samples, ids=int(ids)),
        )

    def _collect(self, local: LocalGradients) -> OwnGradients:
        """Send the gradients of all rows to the ranks that own them; return those of this rank's rows."""
        plan, tables = local.pulled.plan, list(enumerate(self._store.specs))
        times = local.pulled.batch.event_time_s
        return self._store.collect(
            {name: plan.ids(number) for number, name in tables},
            {name: local.rows.grads[number].numpy() for number, name in tables},
            counts={name: plan.counts(number) for number, name in tables},
            time_s=int(times.max()) if len(times) else 0,
        )

    def _sum_squares(self, grads: Sequence[Tensor]) -> list[float]:
        if not grads:
            return []
        own = [each.double().square().sum().item() for each in grads]  # as precise as the sums of a process alone
        squares: list[float] = self._steps.sum(torch.tensor(own, dtype=torch.float64)).tolist()
        return squares

    def _share_weights(self, pulled: PulledBatch, dense: MemberWeights) -> None:
        """Give all ranks the weights of one rank; a rank with examples shapes its lazy weights before."""
        self._are_weights_shared = True
        model = dense.model
        is_waiting = any(is_lazy(each) for each in [*model.parameters(), *model.buffers()])
        every = self._steps.all_gather_ints([pulled.batch.size, is_waiting])
        if self.size == 1:
            return
        if is_waiting and pulled.batch.size:
            dense.shape_weights(pulled)
        # Rank 0, unless it has no data to take shapes from: then the first rank that has.
        has_shapes = (every[:, 0] > 0) | (every[:, 1] == 0)
        source = int(has_shapes.argmax())
        weights = {name: each for name, each in model.state_dict().items() if isinstance(each, Tensor)}
        is_source = self.rank == source
        shapes = {name: [list(each.shape), str(each.dtype)] for name, each in weights.items()} if is_source else {}
        shared = {}
        for name, (shape, dtype) in json.loads(
            self._steps.broadcast_bytes(json.dumps(shapes).encode(), source)
        ).items():
            empty = torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")), device=dense.device)
            shared[name] = self._steps.broadcast(weights[name].detach().clone() if is_source else empty, source)
        model.load_state_dict(shared, strict=False)  # of the same model; only tensors are sent


class _RankRows:
    """The gradients of this rank's rows, summed over all ranks."""

    def __init__(self, store: RankStore, own: OwnGradients) -> None:
        self._store = store
        self._own = own
        self.grads = [torch.from_numpy(table.grads) for table in own.tables.values()]

    def push(self, clipped: Sequence[Tensor], *, step: int) -> None:
        """Take one optimizer step per row of this rank."""
        tables = {
            name: SummedRows(table.ids, grads.numpy(), table.counts)
            for (name, table), grads in zip(self._own.tables.items(), clipped, strict=True)
        }
        self._store.apply(OwnGradients(tables, self._own.time_s), step=step)


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)
