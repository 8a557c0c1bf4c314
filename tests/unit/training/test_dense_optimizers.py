"""Dense optimizers by name, for weights with and without a shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import monolith as mt
from monolith.training.dense_optimizers import DENSE_OPTIMIZERS, make_optimizers


def batches(count: int) -> list[mt.Batch]:
    return [
        mt.Batch.from_arrays(ids={"user": [[step], [1, 2]]}, label=[1, 0], dense={"price": [[1.0], [step]]})
        for step in range(count)
    ]


class Late(mt.Model):
    """A tower whose weights take their shape from the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_feature("user", slot=1)
        self.vector = self.embedding_slice("user", "vector", 2)
        self.dense_feature("price")
        self.tower = mt.layers.MLP([4, 1])

    def forward(self, batch: Any) -> mt.Output:
        logits = self.tower(torch.cat([self.vector(batch), batch.dense["price"]], dim=1))
        return mt.Output(logits=logits.squeeze(1), label=batch.label[:, 0])


@pytest.mark.parametrize("name", DENSE_OPTIMIZERS)
def test_every_optimizer_trains_weights_that_take_their_shape_from_the_first_batch(name: str, tmp_path: Path) -> None:
    def train(folder: str, *ends: int) -> dict[str, torch.Tensor]:
        for end in ends:
            settings = mt.RunConfig(model_dir=tmp_path / folder, dense_optimizer=name)
            estimator = mt.Estimator(Late, settings)
            estimator.train(batches(6), max_steps=end)
            estimator.close()
        return estimator.model.state_dict()

    whole, resumed = train("whole", 6), train("resumed", 3, 6)
    assert whole.keys() == resumed.keys()
    for weight, value in whole.items():
        torch.testing.assert_close(resumed[weight], value, rtol=0, atol=0)


@pytest.mark.parametrize("lazy", ["none", "one", "all"])
def test_adagrad_takes_the_steps_of_torch_with_and_without_shapes(lazy: str) -> None:
    def build(dims: list[int | None]) -> torch.nn.Module:
        torch.manual_seed(3)
        layers = [mt.layers.Dense(width, input_dim=dim) for width, dim in zip((3, 1), dims, strict=True)]
        return torch.nn.Sequential(*layers)

    model = build({"none": [2, 3], "one": [2, None], "all": [None, None]}[lazy])
    options = {"initial_accumulator_value": 0.5, "lr_decay": 0.1}
    made = make_optimizers(model, "adagrad", 0.1, options)["dense"]
    x = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    with torch.no_grad():
        model(x)
    peer = build([2, 3])
    peer.load_state_dict(model.state_dict())
    expected = torch.optim.Adagrad(peer.parameters(), lr=0.1, **options)
    for _ in range(4):
        for module, optimizer in ((model, made), (peer, expected)):
            optimizer.zero_grad()
            module(x).square().sum().backward()
            optimizer.step()
    for one, other in zip(model.parameters(), peer.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
