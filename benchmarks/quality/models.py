"""DeepFM twice: as one trains it here, and in plain PyTorch with matrices, dense gradients and Adam."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import Tensor, nn

import monolith as mt
from monolith.data import Batch
from monolith.embedding import PolynomialDecay
from monolith.training.config import RunConfig
from monolith.training.estimator import Estimator
from monolith.training.metrics import StreamingAuc
from quality.batches import FEATURES, Renamed, ordered, shuffled
from quality.movielens import ONE_VALUED, Ratings

__all__ = ["Network", "PlainDeepFM", "Ranker", "train_ours", "train_peer"]

DIM = 16
HIDDEN = (128, 64)
BATCH = 4096
TEST_BATCH = 16384

# Ours were chosen among some twenty settings on the last fifth of each user's training part, never by the test part.
DROPOUT = 0.2
ROW_RATE, LAST_ROW_RATE = 0.2, 0.055
VECTOR_DECAY = 0.3
FIRST_SQUARES = 1.0
FIRST_ROWS = 0.01
DENSE_RATE = 0.0007

# The peer has our network, dropout and first values; its rate is a usual one and was not searched for.
PEER_RATE = 0.002


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


def train_ours(
    train: Ratings, test: Ratings, *, seed: int, epochs: int, threads: int, renamed: Renamed | None = None
) -> float:
    """Train a fresh model and return its AUC on ``test``."""
    steps = epochs * math.ceil(len(train) / BATCH)
    config = RunConfig(
        seed=seed,
        threads=threads,
        dense_learning_rate=DENSE_RATE,
        clip_type="none",
        progressive_validation=False,
        progress=False,
    )
    estimator = Estimator(lambda: Ranker(steps), config)
    for epoch in range(epochs):
        batches = list(shuffled(train, BATCH, seed=seed, epoch=epoch, renamed=renamed))
        estimator.train(batches, steps=len(batches), resume_data=False)
    return estimator.evaluate(list(ordered(test, TEST_BATCH, renamed=renamed)))["ctr/auc"]


class PlainDeepFM(nn.Module):
    """The same network over ``torch.nn`` embeddings."""

    def __init__(self, counts: dict[str, int]) -> None:
        super().__init__()
        self.singles = nn.ModuleDict({name: nn.Embedding(counts[name], DIM + 1) for name in ONE_VALUED})
        self.genres = nn.EmbeddingBag(counts["genres"], DIM + 1, mode="sum", include_last_offset=True)
        for each in (*self.singles.values(), self.genres):
            nn.init.normal_(each.weight, std=FIRST_ROWS)
        self.network = Network()

    def forward(self, batch: Batch) -> Tensor:  # noqa: D102
        rows = [embedding(batch.ids[name].values) for name, embedding in self.singles.items()]
        rows.append(self.genres(batch.ids["genres"].values, batch.ids["genres"].offsets))
        stacked = torch.stack(rows, dim=1)
        logits: Tensor = self.network(stacked[..., :DIM], stacked[..., DIM].sum(dim=1))
        return logits


def train_peer(train: Ratings, test: Ratings, *, seed: int, epochs: int, threads: int) -> float:
    """Train a fresh plain model and return its AUC on ``test``."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    model = PlainDeepFM(train.counts)
    rule = torch.optim.Adam(model.parameters(), PEER_RATE)
    for epoch in range(epochs):
        for batch in shuffled(train, BATCH, seed=seed, epoch=epoch):
            inputs = batch.as_torch()
            rule.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(model(inputs), inputs.label[:, 0]).backward()
            rule.step()
    model.eval()
    auc = StreamingAuc(exact_size=len(test))
    with torch.no_grad():
        for batch in ordered(test, TEST_BATCH):
            said = torch.sigmoid(model(batch.as_torch())).numpy()
            auc.update(said, np.asarray(batch.label[:, 0]), None, None)
    return auc.result()
