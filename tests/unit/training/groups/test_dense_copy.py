from __future__ import annotations

import torch
from torch import nn

from monolith.training.groups.workers.dense_copy import load_dense, pack_dense


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.arange(12.0).reshape(4, 3)).square().sum().backward()
    optimizer.step()


def test_another_worker_loads_weights_statistics_and_optimizer_to_the_byte() -> None:
    (one, adam), (other, other_adam) = made(), made()
    for _ in range(3):
        step(one, adam)
    load_dense(pack_dense(one, {"dense": adam}), other, {"dense": other_adam})
    for _ in range(2):
        step(one, adam)
        step(other, other_adam)
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
