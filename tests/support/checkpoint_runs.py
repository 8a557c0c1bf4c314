"""A small run to save and restore: a model with a layer that waits for its shape, Adam, two tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from monolith.core.config_sections import build_section
from monolith.embedding import Adagrad, MultiTable, RandomUniform, SliceSpec, TableSpec
from monolith.layers import Dense
from monolith.testing import FakeClock
from monolith.training.checkpoints import Checkpointer, TrainingState
from monolith.training.config import CheckpointConfig

USER = TableSpec("user", [SliceSpec(2, optimizer=Adagrad(0.1), initializer=RandomUniform())], deterministic=True)
ITEM = TableSpec("item", [SliceSpec(3, optimizer=Adagrad(0.1))], deterministic=True)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(Dense(4, activation="relu"), Dense(1))
        self.norm = nn.BatchNorm1d(5)
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.tower(self.norm(x))
        return y


def make_state(seed: int = 0, net: nn.Module | None = None, specs: Any = (USER, ITEM)) -> TrainingState:
    torch.manual_seed(seed)
    model = net or Net()
    return TrainingState(
        step=0, model=model, optimizers={"dense": torch.optim.Adam(model.parameters(), 0.01)}, store=MultiTable(specs)
    )


def train(state: TrainingState, steps: int) -> None:
    """Steps that use every part: weights, optimizer, tables, and the random numbers of all three libraries."""
    (optimizer,) = state.optimizers.values()
    for _ in range(steps):
        state.step += 1
        ids = np.unique(np.random.randint(0, 50, 8))
        rows = state.store.pull({"user": ids, "item": ids})
        x = torch.tensor(np.concatenate([rows["user"], rows["item"]], axis=1), requires_grad=True)
        loss = ((state.model(x + torch.rand_like(x))[:, 0] - 1) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert x.grad is not None
        grads = x.grad.numpy()
        state.store.push({"user": ids, "item": ids}, {"user": grads[:, :2], "item": grads[:, 2:]}, time_s=state.step)
    state.data = {"at": state.step}
    state.metrics = {"ctr/auc": [0.5, float(state.step)]}
    state.extra = {"note": "x"}


def content_of(state: TrainingState) -> dict[str, Any]:
    """All that two equal runs have in common, as plain bytes."""
    content: dict[str, Any] = {name: weight.numpy().tobytes() for name, weight in state.model.state_dict().items()}
    for label, optimizer in state.optimizers.items():
        for number, group in enumerate(optimizer.param_groups):
            for index, weight in enumerate(group["params"]):
                for key, value in optimizer.state.get(weight, {}).items():
                    content[f"{label}.{number}.{index}.{key}"] = value.numpy().tobytes()
    for name in state.store.specs:
        table = state.store[name]  # type: ignore[index]
        entries = {fid: table.entry(fid) for ids, _ in table.items() for fid in ids.tolist()}
        content[name] = {
            fid: (entry.values.tobytes(), [{key: each.tobytes() for key, each in s.items()} for s in entry.state])
            for fid, entry in sorted(entries.items())
        }
    return content


def make_checkpointer(model_dir: Path, clock: FakeClock | None = None, **settings: Any) -> Checkpointer:
    return Checkpointer(model_dir, build_section(CheckpointConfig, **settings), clock=clock or FakeClock())


def save_run(model_dir: Path, steps: tuple[int, ...] = (3,), seed: int = 0, **settings: Any) -> TrainingState:
    """Train a new run and save it at the given steps."""
    state = make_state(seed)
    checkpointer = make_checkpointer(model_dir, **settings)
    for step in steps:
        train(state, step - state.step)
        checkpointer.save(state, reason="test").wait()
    checkpointer.close()
    return state
