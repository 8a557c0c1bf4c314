"""DeepFM twice: as one trains it here, and in plain PyTorch with ids that somebody has mapped to rows already."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

import monolith as mt
from monolith.data import Batch
from monolith.training.config import RunConfig
from monolith.training.estimator import Estimator
from train.workload import DENSE, DIM, HIDDEN, SPARSE, Example, Workload

__all__ = ["Network", "Ours", "PlainNetwork", "PlainTorch", "Ranker", "check_agreement"]

ROW_RATE = 0.01
FIRST_SQUARES = 0.1
EPSILON = 1e-10
"""Our Adagrad has none; it only keeps the peer's from refusing 0, and changes no digit."""
DENSE_RATE = 0.001
WIDTH = len(SPARSE) * DIM + DENSE
"""Inputs of the tower."""


class PlainNetwork(nn.Module):
    """The dense part of DeepFM in PyTorch: a tower over vectors and the numbers' logarithms, all pairs, and biases."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise([WIDTH, *HIDDEN]):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.tower = nn.Sequential(*layers, nn.Linear(HIDDEN[-1], 1))

    def forward(self, vectors: Tensor, bias: Tensor, dense: Tensor) -> Tensor:  # noqa: D102
        numbers = dense.sign() * dense.abs().log1p()
        pairs = 0.5 * (vectors.sum(dim=1).square() - vectors.square().sum(dim=1)).sum(dim=1)
        deep: Tensor = self.tower(torch.cat([vectors.flatten(1), numbers], dim=1)).squeeze(1)
        return bias + pairs + deep


class Network(nn.Module):
    """The same of our layers, as :class:`monolith.models.DeepFM` has them, but without weight norm."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs = mt.layers.FM()
        self.tower = mt.layers.MLP([*HIDDEN, 1], use_weight_norm=False, input_dim=WIDTH)

    def forward(self, vectors: Tensor, bias: Tensor, dense: Tensor) -> Tensor:  # noqa: D102
        numbers = dense.sign() * dense.abs().log1p()
        pairs, vectors = self.pairs.with_features(vectors)
        deep: Tensor = self.tower([vectors.flatten(1), numbers]).squeeze(1)
        return bias + pairs.squeeze(1) + deep

    def plain_state(self) -> dict[str, Tensor]:
        """Return the weights for a ``PlainNetwork``."""
        state = self.state_dict()
        return {name.replace("stack.", "").replace("kernel", "weight"): value.t() for name, value in state.items()}


class Ranker(mt.Model):
    """The same network over tables that take raw ids."""

    def __init__(self) -> None:
        super().__init__()
        rule = mt.Adagrad(ROW_RATE, initial_accumulator_value=FIRST_SQUARES)
        for place, name in enumerate(SPARSE):
            self.embedding_feature(name, slot=place + 1)
        self.dense_feature("numbers", DENSE)
        self.vectors = self.embedding_slice(list(SPARSE), "vec", DIM, optimizer=rule, out="stack")
        self.bias = self.embedding_slice(list(SPARSE), "bias", 1, optimizer=rule, initializer=mt.Zeros(), out="add_n")
        self.network = Network()

    def forward(self, batch: Batch) -> mt.Output:  # noqa: D102
        logits = self.network(self.vectors(batch), self.bias(batch).squeeze(1), batch.dense["numbers"])
        return mt.Output(logits=logits, label=batch.label[:, 0])


class Ours:
    """``Estimator``: 64-bit ids, one table per feature, everything in sequence."""

    name = "monolith"

    def __init__(self, workload: Workload, examples: Sequence[Example], **settings: object) -> None:
        self.estimator = Estimator(
            Ranker,
            RunConfig(
                threads=workload.sizes.threads,
                dense_optimizer="adam",
                dense_learning_rate=DENSE_RATE,
                clip_type="none",  # the peer has neither clipping nor metrics
                progressive_validation=False,
                progress=False,
                **settings,  # type: ignore[arg-type]
            ),
        )
        self.batches = [each.ours for each in examples]

    @property
    def model(self) -> Ranker:
        """The model."""
        assert isinstance(self.estimator.model, Ranker)
        return self.estimator.model

    def fill(self, workload: Workload) -> None:
        """Give every id its first row."""
        for place, name in enumerate(SPARSE):
            self.estimator.store[name].assign(workload.ids(place), workload.first_values(place))  # type: ignore[index]

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return sum(len(self.estimator.store[name]) for name in SPARSE)  # type: ignore[index]

    def steps(self, first: int, count: int) -> None:
        """Take ``count`` steps from batch ``first`` on."""
        chosen = [self.batches[number % len(self.batches)] for number in range(first, first + count)]
        self.estimator.train(chosen, steps=count, resume_data=False)

    def logits(self, batch: Batch) -> Tensor:
        """Return what the model says now."""
        with torch.no_grad():
            said: Tensor = self.model(batch).logits
        return said


class PlainTorch:
    """``EmbeddingBag(sparse=True)`` over the rows of all features, and ``torch.optim.Adagrad``.

    Args:
        workload: What is trained.
        examples: The batches.
        widths: Columns of each bag. A DeepFM in PyTorch has two, one of the vectors and one of the biases;
            ``(DIM + 1,)`` is what somebody makes of it who packs both into one row by hand.
        network: Class of the dense part.
    """

    def __init__(
        self,
        workload: Workload,
        examples: Sequence[Example],
        widths: Sequence[int] = (DIM, 1),
        network: type[Network | PlainNetwork] = PlainNetwork,
    ) -> None:
        self.name = f"torch {torch.__version__}"
        torch.set_num_threads(workload.sizes.threads)
        torch.sparse.check_sparse_tensor_invariants.disable()  # the default and fastest; said aloud, it does not warn
        rows = workload.sizes.ids_per_feature * len(SPARSE)
        self._bags = nn.ModuleList(
            nn.EmbeddingBag(rows, width, mode="sum", sparse=True, _weight=torch.empty(rows, width)) for width in widths
        )
        self._network = network()
        self._rows_rule = torch.optim.Adagrad(
            self._bags.parameters(), ROW_RATE, initial_accumulator_value=FIRST_SQUARES, eps=EPSILON
        )
        self._dense_rule = torch.optim.Adam(self._network.parameters(), DENSE_RATE)
        self._offsets = torch.arange(workload.sizes.batch * len(SPARSE))
        self._inputs = [
            (torch.from_numpy(each.rows.reshape(-1)), torch.from_numpy(each.dense), torch.from_numpy(each.label))
            for each in examples
        ]

    def fill(self, workload: Workload) -> None:
        """Give every row its first values."""
        size = workload.sizes.ids_per_feature
        for place in range(len(SPARSE)):
            values = torch.from_numpy(workload.first_values(place))
            for bag, part in zip(
                self._bags, values.split([bag.embedding_dim for bag in self._bags], dim=1), strict=True
            ):
                bag.weight.data[place * size : (place + 1) * size].copy_(part)

    def copy_dense(self, network: Network) -> None:
        """Start from the same dense weights."""
        same = isinstance(self._network, Network)
        self._network.load_state_dict(network.state_dict() if same else network.plain_state())

    def logits(self, number: int) -> Tensor:
        """Return what the model says of a batch now."""
        ids, dense, _ = self._inputs[number % len(self._inputs)]
        pooled = [bag(ids, self._offsets).view(len(dense), len(SPARSE), -1) for bag in self._bags]
        vectors, biases = pooled if len(pooled) == 2 else pooled[0].split([DIM, 1], dim=2)
        said: Tensor = self._network(vectors, biases.sum(dim=(1, 2)), dense)
        return said

    def step(self, number: int) -> None:
        """Take one step on batch ``number``."""
        self._rows_rule.zero_grad()
        self._dense_rule.zero_grad()
        label = self._inputs[number % len(self._inputs)][2]
        nn.functional.binary_cross_entropy_with_logits(self.logits(number), label, reduction="sum").backward()
        self._rows_rule.step()
        self._dense_rule.step()

    def steps(self, first: int, count: int) -> None:
        """Take ``count`` steps from batch ``first`` on."""
        for number in range(first, first + count):
            self.step(number)


def check_agreement(ours: Ours, peers: Sequence[PlainTorch]) -> None:
    """Refuse to time contestants that do not compute the same: logits, two steps, logits again."""
    for moment in ("before", "after"):
        own = ours.logits(ours.batches[0]).numpy()
        for peer in peers:
            apart = float(np.abs(own - peer.logits(0).detach().numpy()).max())
            if not math.isfinite(apart) or apart > 1e-4:
                raise RuntimeError(f"{ours.name} and {peer.name} disagree {moment} two steps: logits are {apart} apart")
        for side in (ours, *peers):
            side.steps(0, 2)
