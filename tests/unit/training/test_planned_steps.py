"""Training by planned pulls leaves the same bits as training by ``pull`` and ``push``, in every schedule."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import monolith as mt
from monolith.embedding import MultiTable, SlidingHashFilter
from monolith.layers.clipping import ClippingConfig
from monolith.training.pipeline import Pipeline
from monolith.training.step import Stepper


class Ranker(mt.Model):
    """Two tables of two slices, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        for slot, name in enumerate(("user", "item"), start=1):
            options = {"occurrence_threshold": 2, "admission": SlidingHashFilter(3000)} if name == "item" else {}
            self.embedding_feature(name, slot=slot, **options)
        rule = mt.Adagrad(0.1)
        self.vectors = self.embedding_slice(["user", "item"], "vec", 4, optimizer=rule, out="concat")
        self.bias = self.embedding_slice(["user", "item"], "bias", 1, optimizer=rule, out="add_n")
        self.top = torch.nn.Linear(8, 1)

    def forward(self, batch: Any) -> mt.Output:
        logits = self.top(self.vectors(batch)).squeeze(1) + self.bias(batch).squeeze(1)
        return mt.Output(logits=logits, label=batch.label[:, 0])


class PlainTables(MultiTable):
    """Another type than ``MultiTable``, so the embedder calls ``pull`` and ``push``."""


def draw_batches(seed: int) -> list[mt.Batch]:
    random = np.random.default_rng(seed)
    batches = []
    for number in range(8):
        ids = {name: random.integers(0, 60, (40, 2)).tolist() for name in ("user", "item")}
        label = random.integers(0, 2, 40).astype(np.float32)
        batches.append(mt.Batch.from_arrays(ids=ids, label=label, event_time_s=np.full(40, 1000 + number)))
    return batches


def train(kind: type[MultiTable], seed: int, **options: Any) -> tuple[list[float], list[Any]]:
    """Return the losses of the steps, and the rows and weights at the end."""
    model = Ranker()
    store = kind(model.declaration.table_specs())
    dense = {"dense": torch.optim.Adam(model.parameters(), 0.01)}
    stepper = Stepper(model, model.attach(store), dense, ClippingConfig(clip_norm=0.5))
    batches = draw_batches(seed)
    pipeline = Pipeline(stepper, ((batch, lambda: None) for batch in [*batches, *batches]), **options)
    losses = []
    try:
        for step in itertools.count():
            result = pipeline.run_step(step)
            if result is None:
                break
            losses.append(result.loss)
            if step == 9:  # as the hook that drops expired rows
                with pipeline.settled():
                    store["user"].delete(np.arange(20))
                    store["item"].reinitialize(batches[0].ids["item"].values[:5])
        pipeline.drain()
    finally:
        pipeline.close()
    rows = [entries for name in store for entry in store[name].export_entries() for entries in entry]
    return losses, [*rows, *(weight.detach().numpy() for weight in model.parameters())]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prefetch": 2},
        {"late_push": True},
        {"prefetch": 1, "late_push": True, "late_dense": True},
    ],
    ids=["sequential", "pulled_ahead", "late_push", "all_late"],
)
def test_planned_steps_equal_plain_steps(options: dict[str, Any], seed: int) -> None:
    planned, plain = train(MultiTable, seed, **options), train(PlainTables, seed, **options)
    assert len(planned[0]) == 16
    assert planned[0] == plain[0]
    assert len(planned[1]) == len(plain[1])
    for one, other in zip(planned[1], plain[1], strict=True):
        np.testing.assert_array_equal(one, other)
