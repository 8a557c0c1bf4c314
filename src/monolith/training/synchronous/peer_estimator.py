"""``PeerEstimator``: an estimator that is one of several ranks. All of them make the same calls in the same order."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from monolith.core.clock import Clock
from monolith.core.errors import ConfigError, DataError, MonolithError
from monolith.data import Batch, Dataset
from monolith.features import Model
from monolith.training.checkpoints import Checkpointer, random_states
from monolith.training.config import RunConfig
from monolith.training.estimator import Estimator
from monolith.training.hooks import Hook
from monolith.training.loop import TrainingRun
from monolith.training.step import Stepper
from monolith.training.synchronous.peer_batches import StepSizes
from monolith.training.synchronous.peer_checkpoints import FollowingCheckpointer, LeadingCheckpointer
from monolith.training.synchronous.peer_run import PeerRun
from monolith.training.synchronous.peer_stepper import PeerStepper
from monolith.training.synchronous.peer_store import PeerStore
from monolith.training.synchronous.peers import Peers

__all__ = ["PeerEstimator"]


class PeerEstimator(Estimator):
    """Trains one model together with the other ranks; see ``Estimator``.

    Every rank reads its own part of the data, and a step learns from the batches of all. Rank 0 logs, measures and
    saves; the folder of the run is written to by all ranks, each its own rows.

    Args:
        model: The same model at all ranks, or what makes it.
        config: The same settings at all ranks.
        peers: The ranks.
        hooks: What runs beside the training of this rank.
        clock: The clock of schedules and rates.
        extra: What each checkpoint is to hold besides; of rank 0.
        store: Must be None: the rows are at the ranks.
    """

    def __init__(
        self,
        model: Model | Callable[[], Model],
        config: RunConfig | None = None,
        *,
        peers: Peers,
        hooks: Sequence[Hook] = (),
        clock: Clock | None = None,
        extra: Callable[[], Mapping[str, Any]] | None = None,
        store: None = None,
    ) -> None:
        config = config or RunConfig()
        if store is not None:
            raise ConfigError("a PeerEstimator keeps its rows at the ranks; leave store away")
        if config.accelerator == "cuda" and config.embedding_prefetch_capacity:
            raise ConfigError(
                f"embedding_prefetch_capacity is {config.embedding_prefetch_capacity}; ranks on GPUs pull rows in "
                "their step: set it to 0"
            )
        self._peers = peers
        self._sizes: StepSizes = deque()
        self._ranks: list[dict[str, Any]] = []
        self._run_dir = config.model_dir
        super().__init__(
            model,
            _of_rank(config, peers),
            hooks=hooks,
            store=lambda specs: PeerStore(peers, specs, force_expiry=config.force_expiry),
            clock=clock,
            extra=extra,
        )

    def train(
        self,
        data: Dataset | Sequence[Batch],
        steps: int | None = None,
        max_steps: int | None = None,
        *,
        hooks: Sequence[Hook] = (),
        resume_data: bool = True,
    ) -> dict[str, float]:
        """Train on this rank's data, in step with the others; return the metrics of all ranks, at all of them.

        Goes on until no rank has data left; see ``Estimator.train``.
        """
        try:
            metrics = super().train(data, steps, max_steps, hooks=hooks, resume_data=resume_data)
        except BaseException:
            with suppress(MonolithError):  # that of the training is told
                self.close()  # a save under way still needs this rank
            raise
        found: dict[str, float] = json.loads(self._peers.steps.from_chief(json.dumps(metrics).encode()))
        return found

    # --- what it is made of ---

    def _make_stepper(self, *parts: Any, **options: Any) -> Stepper:
        return PeerStepper(*parts, sizes=self._sizes, **options)

    def _make_checkpointer(self) -> Checkpointer | None:
        if not self._run_dir:
            return None
        if self._peers.is_chief:
            timer, dense_timer = self._timers
            return LeadingCheckpointer(
                self._run_dir, self.config, peers=self._peers, clock=self._clock, timer=timer, dense_timer=dense_timer
            )
        return FollowingCheckpointer(self._run_dir, self.config, peers=self._peers, clock=self._clock)

    def _make_run(self, **parts: Any) -> TrainingRun:
        return PeerRun(peers=self._peers, sizes=self._sizes, keep=self._keep, **parts)

    def _extra(self) -> dict[str, Any]:
        return {**super()._extra(), "ranks": self._ranks}

    def _keep(self, ranks: list[dict[str, Any]]) -> None:
        self._ranks = ranks

    # --- going on ---

    def _restore(self) -> None:
        is_first = self._holds != "training"
        super()._restore()
        if not is_first:
            return
        ranks = self.restored_extra.get("ranks", [])
        if len(ranks) == self._peers.size:
            own = ranks[self._peers.rank]
            self._place, self._data_ended = own["place"], bool(own["data_ended"])
            random_states.decode(own["random"])
        elif self._peers.rank:
            _seed(self.config.seed + self._peers.rank)  # dropout must not be the same at all ranks

    def _resume(self, dataset: Any) -> bool:
        saved = len(self.restored_extra.get("ranks", [])) or 1
        if self.restored_extra and saved != self._peers.size and self._place is not None and not self._data_ended:
            raise DataError(
                f"the checkpoint of step {self._step} was saved by {saved} ranks, and there are {self._peers.size}: "
                "their places in the data do not fit. To start at the beginning of the data: resume_data=False"
            )
        return super()._resume(dataset)


def _of_rank(config: RunConfig, peers: Peers) -> RunConfig:
    """Return the settings of one rank: all but rank 0 are silent, and leave the folder to it."""
    if config.num_workers not in (1, peers.size) or config.index not in (0, peers.rank):
        raise ConfigError(
            f"index is {config.index} of num_workers {config.num_workers}, but this is rank {peers.rank} of "
            f"{peers.size}; leave both away"
        )
    placed = replace(config, index=peers.rank, num_workers=peers.size)
    if peers.is_chief:
        return placed
    return replace(
        placed,
        model_dir="",
        log_step_count_steps=0,
        save_summary_steps=0,
        progress=False,
        metrics_port=None,
        controller_port=None,
        profile_some_steps_from=None,
    )


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)
