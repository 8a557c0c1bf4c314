"""One step of all ranks: each learns from its own batch, and all apply what all have learnt.

The loss of a batch is a sum over its examples, so gradients are added up, not averaged: a step of several ranks is the
step of one process with their batches put together. The losses of layers, which are there once however many examples
there are, count in each rank by its share of the examples. Clipping sees the sums.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from monolith.core.errors import ConfigError, TrainingDiverged
from monolith.features import PulledBatch
from monolith.features.autograd import embed
from monolith.training.heads import Heads
from monolith.training.step import Gradients, Stepper, newest_time_s
from monolith.training.synchronous.peer_batches import StepSizes
from monolith.training.synchronous.peer_store import OwnGradients, PeerStore
from monolith.training.synchronous.row_request import SummedRows
from monolith.training.synchronous.shared_clipping import clip_shared
from monolith.training.synchronous.summed_weights import NO_HEADS, shared_objective, summed_gradients

__all__ = ["PeerGradients", "PeerStepper", "StepTotals"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTotals:
    """A step over all ranks."""

    loss: float = 0.0
    """The sum over all examples."""
    samples: int = 0
    ids: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class PeerGradients(Gradients):
    """What all ranks learnt; the sparse part is of this rank's rows."""

    own: OwnGradients


class PeerStepper(Stepper):
    """Computes the steps of one rank; see ``Stepper``."""

    def __init__(self, *parts: Any, sizes: StepSizes | None = None, **options: Any) -> None:
        super().__init__(*parts, **options)
        store = self.embedder.store
        if not isinstance(store, PeerStore):
            raise ConfigError(f"the store is a {type(store).__name__}; ranks that step together need a PeerStore")
        self._store = store
        self._channel = store.peers.steps
        self._sizes: StepSizes = deque() if sizes is None else sizes
        self._share = 1.0
        self._are_weights_shared = False
        self.totals = StepTotals()
        """Of the last step."""

    def compute(self, pulled: PulledBatch, step: int) -> tuple[Heads, PeerGradients]:
        """Run forward and backward of this rank's batch, and add up what all ranks learnt.

        Raises:
            TrainingDiverged: A loss or a gradient is not finite, at any rank; nothing was changed.
        """
        if not self._are_weights_shared:
            self._share_weights(pulled)
        samples = sum(self._sizes.popleft())
        self._share = pulled.batch.size / max(1, samples)
        failures: list[TrainingDiverged] = []
        heads, rows = NO_HEADS, [torch.zeros(each.shape) for each in pulled.rows]
        if pulled.batch.size:
            try:
                heads, embedded = self._learn(pulled, step)
                rows = [new if each.grad is None else each.grad for new, each in zip(rows, embedded.rows, strict=True)]
            except TrainingDiverged as error:
                failures.append(error)
        else:
            self._forget_gradients()
        weights = self._sum_weights(heads, samples, pulled, failures, step)
        own = self._collect(pulled, rows)
        sums = [each.grads for each in own.tables.values()]
        grads = [each.grad for each in weights if each.grad is not None]
        sums_of_rows = [torch.from_numpy(each) for each in sums]
        dense, sparse = self._bounded(weights, grads, sums_of_rows, self._squares(sums), step)
        return heads, PeerGradients(step, own.time_s, pulled.plan, dense, sparse, own)

    def apply_sparse(self, gradients: Gradients) -> None:
        """Step this rank's rows."""
        assert isinstance(gradients, PeerGradients)  # made here
        tables = {
            name: SummedRows(table.ids, clipped.numpy(), table.counts)
            for (name, table), clipped in zip(gradients.own.tables.items(), gradients.sparse, strict=True)
        }
        self._store.apply(OwnGradients(tables, gradients.time_s), step=gradients.step)

    def _objective(self, heads: Heads) -> Tensor:
        """The heads' losses in full, and this rank's share of those of the layers."""
        return shared_objective(heads, self._share)

    def _clip(
        self, dense: list[Tensor], sparse: list[Tensor], squares: Sequence[float], step: int
    ) -> tuple[list[Tensor], list[Tensor]]:
        return clip_shared(dense, sparse, torch.tensor(squares, dtype=torch.float32), self._clipping, step)

    # --- over all ranks ---

    def _sum_weights(
        self, heads: Heads, samples: int, pulled: PulledBatch, failures: list[TrainingDiverged], step: int
    ) -> list[nn.Parameter]:
        """Give every weight that any rank has a gradient of the sum of them; return these weights."""
        weights = list(self.model.parameters())
        loss = 0.0 if heads.loss is None else float(self._objective(heads).detach())
        told = [len(failures), loss, pulled.plan.occurrences, *(each.grad is not None for each in weights)]
        diverged, loss, ids, *has_gradient = self._channel.sum(torch.tensor(told, dtype=torch.float64)).tolist()
        if failures:
            raise failures.pop()  # an exception that a variable of its own frame holds would outlive everything
        if diverged:
            raise TrainingDiverged(f"step {step + 1}: the loss of another rank is not finite; see what it said")
        self.totals = StepTotals(loss=loss, samples=samples, ids=int(ids))
        learnt = [each for each, ranks in zip(weights, has_gradient, strict=True) if ranks]
        for weight, gradient in zip(learnt, summed_gradients(self._channel, learnt), strict=True):
            weight.grad = gradient
        return learnt

    def _collect(self, pulled: PulledBatch, rows: Sequence[Tensor]) -> OwnGradients:
        places = list(enumerate(self.embedder.declaration.tables))
        return self._store.collect(
            {name: pulled.plan.ids(place) for place, name in places},
            {name: rows[place].numpy() for place, name in places},
            counts={name: pulled.plan.counts(place) for place, name in places},
            time_s=newest_time_s(pulled),
        )

    def _squares(self, grads: Sequence[Any]) -> list[float]:
        own = [torch.from_numpy(each).square().sum().item() for each in grads]
        squares: list[float] = self._channel.sum(torch.tensor(own, dtype=torch.float64)).tolist() if own else []
        return squares

    # --- the beginning ---

    def _share_weights(self, pulled: PulledBatch) -> None:
        """Give all ranks the weights of one; those that get their shape from the first batch get it before."""
        self._are_weights_shared = True
        is_waiting = any(is_lazy(each) for each in [*self.model.parameters(), *self.model.buffers()])
        said = self._channel.numbers([pulled.batch.size, is_waiting])
        if self._channel.size == 1:
            return
        if is_waiting and pulled.batch.size:
            self._shape_weights(pulled)
        # Rank 0, unless it has no data to take shapes from: then the first that has.
        has_shapes = (said[:, 0] > 0) | (said[:, 1] == 0)
        source = int(has_shapes.argmax())
        weights = {name: each for name, each in self.model.state_dict().items() if isinstance(each, Tensor)}
        is_source = self._channel.rank == source
        shapes = {name: [list(each.shape), str(each.dtype)] for name, each in weights.items()} if is_source else {}
        told = json.loads(self._channel.from_chief(json.dumps(shapes).encode(), source))
        shared = {}
        for name, (shape, dtype) in told.items():
            empty = torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")), device=self._device)
            shared[name] = self._channel.spread(weights[name].detach().clone() if is_source else empty, source)
        self.model.load_state_dict(shared, strict=False)  # of the same model; only tensors are sent

    @torch.no_grad()
    def _shape_weights(self, pulled: PulledBatch) -> None:
        was_training = self.model.training
        self.model.eval()  # running statistics and random numbers stay as they are
        try:
            self.model(embed(self.embedder, pulled, device=self._device, needs_grad=False).batch)
        finally:
            self.model.train(was_training)
