"""``dense_reduce_mean`` divides the dense gradients, and nothing else, by the examples of a step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import monolith as mt
from monolith.demo.world import World

CLICKS = World(users=20, items=10, seed=1).clicks(64)


class Linear(mt.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense_feature("price")
        self.embedding_feature("user_id", slot=1)
        self.bias = self.embedding_slice("user_id", "bias", 1)
        self.tower = torch.nn.Linear(1, 1)

    def forward(self, batch: Any) -> mt.Output:
        logits = self.tower(batch.dense["price"].log1p()) + self.bias(batch)
        return mt.Output(logits=logits.squeeze(1), label=batch.label[:, 0])


def change_of_weights(rows: int = 64, **settings: Any) -> torch.Tensor:
    config = mt.RunConfig(dense_optimizer="sgd", dense_learning_rate=0.01, log_step_count_steps=0, seed=5, **settings)
    estimator = mt.Estimator(Linear, config)
    before = estimator.model.tower.weight.detach().clone()
    estimator.train(CLICKS.dataset().batch(rows), max_steps=1)
    return estimator.model.tower.weight.detach() - before


@pytest.mark.parametrize("rows", [16, 64])
def test_the_mean_over_the_examples_moves_dense_weights_by_that_share_of_the_sum(rows: int) -> None:
    added, averaged = change_of_weights(rows), change_of_weights(rows, dense_reduce_mean=True)
    assert added.abs().sum() > 0
    torch.testing.assert_close(averaged, added / rows)
