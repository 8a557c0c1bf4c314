"""``Group``: the strategy by which one process trains together with others, and the values that it exchanges.

The estimator, the run and the stepper are the same for all groups. They ask the group at fixed points:

==================  ====================================================================================
caller              questions
==================  ====================================================================================
``Estimator``       settings, store, checkpointer, the member's part of a restored checkpoint
``TrainingRun``     aligned data, where to start, requests of all members, heads and positions of all
``Stepper``         the gradients of all members, and clipping by the norms of all
==================  ====================================================================================

Members call every collective method in the same order, from the thread of the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from monolith.core.clock import Clock
from monolith.core.errors import TrainingDiverged
from monolith.embedding import EmbeddingStore, TableSpec
from monolith.features import Model, PulledBatch
from monolith.features.declaration import Declaration
from monolith.training.checkpoints import Checkpointer
from monolith.training.config import CheckpointConfig, RunConfig, SaveTimer
from monolith.training.heads import Heads, StepTotals
from monolith.training.run import HeadResult

__all__ = [
    "ControlFlags",
    "Decision",
    "MemberWeights",
    "DueSave",
    "Group",
    "GroupClosed",
    "GroupGradients",
    "LocalGradients",
    "MemberPosition",
    "RowGradients",
    "StoreSource",
]

StoreSource = EmbeddingStore | Callable[[Sequence[TableSpec]], EmbeddingStore] | None
"""A store, a function that opens one for the tables of a model, or None for tables in this process."""


class GroupClosed(Exception):
    """The training has ended for all members; raised where a step would begin.

    Attributes:
        is_out_of_data: Whether this member has read all of its data.
    """

    def __init__(self, *, is_out_of_data: bool = False) -> None:
        super().__init__()
        self.is_out_of_data = is_out_of_data


class DueSave(IntEnum):
    """A save that the schedule asks for."""

    NONE = 0
    FULL = 1
    DENSE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlFlags:
    """Requests that one member received since the last step boundary."""

    stop_reason: str | None = None
    """Why the run is to end; None = no request."""
    pauses: bool = False
    """Whether the run is to pause."""
    saves: bool = False
    """Whether another thread waits for a checkpoint."""
    due: DueSave = DueSave.NONE
    """The save that the schedule of rank 0 asks for."""

    @property
    def stops(self) -> bool:
        """Whether the run is to end."""
        return self.stop_reason is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Actions that a member takes at a step boundary, agreed on with all members."""

    stop_reason: str | None = None
    pauses: bool = False
    saves: bool = False
    due: DueSave = DueSave.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPosition:
    """The position of one member in its data, from a checkpoint."""

    position: Any
    data_ended: bool


class MemberWeights(Protocol):
    """The dense weights that the members of a group keep equal."""

    @property
    def model(self) -> Model:
        """The model of this member."""
        ...

    @property
    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]:
        """The optimizers of its weights, by label."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        ...

    def shape_weights(self, pulled: PulledBatch) -> None:
        """Give lazily shaped weights their shape, by a forward pass that changes no state."""
        ...


class RowGradients(Protocol):
    """Gradients of embedding rows, and the rows that they belong to."""

    @property
    def grads(self) -> Sequence[Tensor]:
        """Per table, (U, D), before clipping."""
        ...

    def push(self, clipped: Sequence[Tensor], *, step: int) -> None:
        """Apply clipped gradients to the rows."""
        ...


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LocalGradients:
    """The gradients that one member computed from its own batch."""

    step: int
    """The step's number, from 0."""
    pulled: PulledBatch
    heads: Heads
    loss: float
    """The loss that was differentiated: a sum over the examples of this member."""
    weights: Sequence[nn.Parameter]
    """All weights of the model; ``grad`` is None where the batch did not reach a weight."""
    rows: RowGradients
    squares: Sequence[float]
    """Per table: the sum of squares of its row gradients."""
    failures: list[TrainingDiverged] = field(default_factory=list)
    """The error of this member, if its loss is not finite. The group raises it after all members know.

    A list, so that ``pop`` leaves no frame that holds its own exception.
    """


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GroupGradients:
    """The gradients that this member applies: of its weights, and of the rows that it pushes."""

    weights: Sequence[nn.Parameter]
    grads: Sequence[Tensor]
    """Per weight."""
    rows: RowGradients
    squares: Sequence[float]
    """Per table: the sum of squares of the row gradients of all members."""
    totals: StepTotals


class Group(Protocol):
    """All processes that train one model together, seen by one of them. One estimator has one group."""

    @property
    def rank(self) -> int:
        """The number of this member; 0 is the chief."""
        ...

    @property
    def size(self) -> int:
        """The number of members."""
        ...

    @property
    def is_lockstep(self) -> bool:
        """Whether members take every step together, so that all must agree on a stop or a pause."""
        ...

    @property
    def is_one_run(self) -> bool:
        """Whether rank 0 measures and saves for all members, and every member writes its part of a checkpoint."""
        ...

    # --- Estimator ---

    def member_config(self, config: RunConfig) -> RunConfig:
        """Return the settings of this member.

        Raises:
            ConfigError: The settings do not fit this group.
        """
        ...

    def open_store(
        self, store: StoreSource, specs: Sequence[TableSpec], *, force_expiry: bool = False
    ) -> EmbeddingStore:
        """Return the store of the model's tables."""
        ...

    def make_checkpointer(
        self, model_dir: str | Path, config: CheckpointConfig, *, clock: Clock, timer: SaveTimer, dense_timer: SaveTimer
    ) -> Checkpointer:
        """Return the checkpointer of this member."""
        ...

    def restore_member(self, extra: Mapping[str, Any], seed: int) -> MemberPosition | None:
        """Take over this member's part of a restored checkpoint; return its position, or None without one.

        Args:
            extra: The additional state of the checkpoint; empty without a checkpoint.
            seed: The seed of the run, for members that must differ in their random numbers.
        """
        ...

    def check_resume(self, extra: Mapping[str, Any], step: int) -> None:
        """Check that the positions of a checkpoint fit this group.

        Raises:
            DataError: Another number of members saved it.
        """
        ...

    def share_metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        """Return the metrics of the run at every member."""
        ...

    # --- TrainingRun ---

    def align(self, dataset: Any, declaration: Declaration) -> Any:
        """Return the data of this member with as many batches as the longest data of all members."""
        ...

    def join(self, dense: MemberWeights, step: int, flags: Callable[[], ControlFlags]) -> int:
        """Connect with the other members; return the step that the group is at.

        Args:
            dense: The weights of this member; it may get those of another member.
            step: Steps behind them.
            flags: Returns the requests that this member has received.

        Raises:
            GroupClosed: The training has ended.
        """
        ...

    def agree(self, flags: ControlFlags) -> Decision:
        """Return the actions that follow from the requests of all members."""
        ...

    def gather_heads(self, heads: Mapping[str, HeadResult]) -> Mapping[str, HeadResult] | None:
        """Return the heads that this member measures; None where rank 0 measures them."""
        ...

    def gather_positions(self, position: Any, data_ended: bool) -> None:
        """Collect the positions of all members at rank 0, for the checkpoint that follows."""
        ...

    def checkpoint_extra(self) -> dict[str, Any]:
        """Return the additional state of the members in a checkpoint, as JSON."""
        ...

    # --- Stepper ---

    def begin_step(self, pulled: PulledBatch, dense: MemberWeights) -> float:
        """Prepare a step; return the share of the layer losses that this member counts.

        Layer losses exist once per step, however many examples it has.
        """
        ...

    def combine(self, local: LocalGradients) -> GroupGradients:
        """Return the gradients of all members.

        The loss of a batch is a sum over its examples, so gradients are added, not averaged.

        Raises:
            TrainingDiverged: The loss of a member is not finite; no member applies the step.
            GroupClosed: No member has an example left.
        """
        ...
