"""DeepFM trained twice in one process: ours, and plain PyTorch with matrices, dense gradients and Adam."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from monolith.data import Batch
from monolith.training.config import RunConfig
from monolith.training.estimator import Estimator
from monolith.training.metrics import StreamingAuc
from quality.batches import Renamed, ordered, shuffled
from quality.movielens import ONE_VALUED, Ratings
from quality.ranker import BATCH, DENSE_RATE, DIM, FIRST_ROWS, TEST_BATCH, Network, Ranker

__all__ = ["PlainDeepFM", "steps_of", "train_ours", "train_peer"]

# The peer has our network, dropout and first values; its rate is a usual one and was not searched for.
PEER_RATE = 0.002


def steps_of(train: Ratings, epochs: int) -> int:
    """Return how many steps so many epochs are."""
    return epochs * math.ceil(len(train) / BATCH)


def train_ours(
    train: Ratings, test: Ratings, *, seed: int, epochs: int, threads: int, renamed: Renamed | None = None
) -> float:
    """Train a fresh model and return its AUC on ``test``."""
    steps = steps_of(train, epochs)
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
