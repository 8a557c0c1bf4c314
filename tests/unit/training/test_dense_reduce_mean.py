from __future__ import annotations

from typing import Any

import torch
from typing_extensions import override

import monolith as mt
from monolith.demo.world import World
from monolith.training.groups import Solo

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


class TwoMembers(Solo):
    """A group of two whose other member has no examples."""

    @property
    @override
    def size(self) -> int:
        return 2


def change_of_weights(**settings: Any) -> torch.Tensor:
    config = mt.RunConfig(dense_optimizer="sgd", dense_learning_rate=0.01, log_step_count_steps=0, seed=5, **settings)
    estimator = mt.Estimator(Linear, config, group=TwoMembers())
    before = estimator.model.tower.weight.detach().clone()
    estimator.train(CLICKS.dataset().batch(64), max_steps=1)
    return estimator.model.tower.weight.detach() - before


def test_the_mean_of_two_members_moves_dense_weights_half_as_far_as_the_sum() -> None:
    added, averaged = change_of_weights(), change_of_weights(dense_reduce_mean=True)
    assert added.abs().sum() > 0
    torch.testing.assert_close(averaged, added / 2)
