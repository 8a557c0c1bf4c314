"""DeepFM as one trains it here: the task of a job of several processes too (``--task ranker.py:Ranker``)."""

from __future__ import annotations

import itertools

from torch import Tensor, nn

import monolith as mt
from monolith.data import Batch
from monolith.embedding import PolynomialDecay
from quality.batches import FEATURES

__all__ = ["BATCH", "DENSE_RATE", "DIM", "FIRST_ROWS", "TEST_BATCH", "Network", "Ranker"]

DIM = 16
HIDDEN = (128, 64)
BATCH = 4096
TEST_BATCH = 16384

# These were chosen among some twenty settings on the last fifth of each user's training part, never by the test part.
DROPOUT = 0.2
ROW_RATE, LAST_ROW_RATE = 0.2, 0.055
VECTOR_DECAY = 0.3
FIRST_SQUARES = 1.0
FIRST_ROWS = 0.01
DENSE_RATE = 0.0007


class Network(nn.Module):
    """The dense part of DeepFM: biases, all pairs, and a tower."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise([len(FEATURES) * DIM, *HIDDEN]):
            layers += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(DROPOUT)]
        self.tower = nn.Sequential(*layers, nn.Linear(HIDDEN[-1], 1))

    def forward(self, vectors: Tensor, bias: Tensor) -> Tensor:  # noqa: D102
        pairs = 0.5 * (vectors.sum(dim=1).square() - vectors.square().sum(dim=1)).sum(dim=1)
        deep: Tensor = self.tower(vectors.flatten(1)).squeeze(1)
        return bias + pairs + deep


class Ranker(mt.Model):
    """DeepFM whose vectors decay towards zero; the rate of rows falls to about a quarter over ``steps`` steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        for slot, name in enumerate(FEATURES, start=1):
            self.embedding_feature(name, slot=slot)
        rate = PolynomialDecay(ROW_RATE, steps, LAST_ROW_RATE, power=1.5)
        names = list(FEATURES)
        self.vectors = self.embedding_slice(
            names,
            "vec",
            DIM,
            optimizer=mt.Adagrad(initial_accumulator_value=FIRST_SQUARES, weight_decay_factor=VECTOR_DECAY),
            initializer=mt.RandomUniform(-FIRST_ROWS, FIRST_ROWS),
            learning_rate=rate,
            out="stack",
        )
        self.bias = self.embedding_slice(
            names,
            "bias",
            1,
            optimizer=mt.Adagrad(initial_accumulator_value=FIRST_SQUARES),
            initializer=mt.Zeros(),
            learning_rate=rate,
            out="add_n",
        )
        self.network = Network()

    def forward(self, batch: Batch) -> mt.Output:  # noqa: D102
        logits = self.network(self.vectors(batch), self.bias(batch).squeeze(1))
        return mt.Output(logits=logits, label=batch.label[:, 0])
