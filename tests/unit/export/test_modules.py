"""Exports of modules that contain ``mt.nn``: a server returns the results of the module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import monolith as mt
from monolith.core.errors import ConfigError
from monolith.export import export_module
from monolith.serving import Servable

USERS = torch.tensor([3, -5, 2**62])
SEEN = (torch.tensor([1, 2, 2, 9]), torch.tensor([0, 3, 3, 4]))
LIKED = (torch.tensor([2, 7]), torch.tensor([0, 1, 2, 2]))
PLACES = torch.tensor([[4, 5], [5, 6], [8, 4]])
PRICES = torch.tensor([[1.0, 2.0], [0.5, -1.0], [3.0, 0.0]])


class Ranker(nn.Module):
    """Every table module that an export takes, dense inputs, and two results."""

    def __init__(self) -> None:
        super().__init__()
        self.user = mt.nn.EmbeddingBag(3, name="user", optimizer=mt.Adagrad(0.5), mode="mean")
        self.place = mt.nn.Embedding(2, name="place", optimizer=mt.Sgd(0.5))
        shared: dict[str, Any] = {"table": "item", "optimizer": mt.Sgd(0.5)}
        self.items = mt.nn.EmbeddingBagCollection(
            [mt.nn.Feature("seen", 4, mode="mean", **shared), mt.nn.Feature("liked", 4, **shared)]
        )
        self.top = nn.Linear(17, 2)

    def forward(self, users: Tensor, items: dict[str, Any], places: Tensor, prices: Tensor) -> dict[str, Tensor]:
        rows = self.items(items)
        flat = [self.user(users[:, None].long()), rows["seen"], rows["liked"], self.place(places).flatten(1), prices]
        both = self.top(torch.cat(flat, dim=1))
        return {"click": torch.sigmoid(both[:, 0]), "watch_s": both[:, 1]}


def arguments() -> dict[str, Any]:
    return {"users": USERS, "items": {"seen": SEEN, "liked": LIKED}, "places": PLACES, "prices": PRICES}


def test_a_server_returns_the_results_of_the_module(tmp_path: Path) -> None:
    torch.manual_seed(1)
    ranker = Ranker()
    for _ in range(2):
        sum(each.square().sum() for each in ranker(**arguments()).values()).backward()
    path = export_module(ranker, tmp_path, name="ranker", example=arguments(), version=7)
    assert ranker.training
    assert isinstance(ranker.user, mt.nn.EmbeddingBag)
    expected = ranker.eval()(**arguments())
    servable = Servable.load(path, verify="checksums")
    assert servable.manifest.global_step == 2
    scores = servable.predict_features(
        {
            "user": USERS.tolist(),
            "seen": [[1, 2, 2], [], [9]],
            "liked": [[2], [7], []],
            "place": PLACES.tolist(),
            "prices": PRICES.tolist(),
        }
    )
    for name, each in expected.items():
        np.testing.assert_allclose(scores[name], each.detach().numpy(), rtol=1e-5, atol=1e-6)


class Tower(nn.Module):
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.bag = mt.nn.EmbeddingBag(2, **settings)

    def forward(self, ids: Tensor) -> Tensor:
        return self.bag(ids).sum(dim=1)


class _Twice(Tower):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) + super().forward(ids)


class _Hashing(Tower):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids.remainder(10))


class _Masking(Tower):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * (ids[:, 0] != 3)


class _Counting(Tower):
    def forward(self, ids: Tensor) -> Tensor:
        rows = 0
        for number, _ in enumerate(ids):
            assert number < 2
            rows += 1
        return super().forward(ids) * rows


class _Positional(Tower):
    def forward(self, *inputs: Tensor) -> Tensor:
        return super().forward(inputs[0])


class _TwoTables(Tower):
    def __init__(self) -> None:
        super().__init__()
        self.other = mt.nn.EmbeddingBag(2)

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) + self.other(ids).sum(dim=1)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (lambda: _Twice(), "called twice"),
        (lambda: _Hashing(), "'remainder' of the ids in argument 'ids'"),
        (lambda: _Masking(), "'==' of the ids in argument 'ids'"),
        (lambda: _Counting(), "'iter' of the ids in argument 'ids'"),
        (lambda: _Positional(), "parameter 'inputs' of forward.* is positional"),
        (lambda: _TwoTables(), "own name="),
        (lambda: Tower(mode="max"), "'max'"),
        (lambda: Tower(padding_idx=0), "padding id 0"),
        (lambda: nn.Linear(2, 1), "without table modules"),
    ],
)
def test_a_module_that_no_server_can_run_is_refused(tmp_path: Path, module: Any, words: str) -> None:
    made = module()
    with pytest.raises(ConfigError, match=words):
        export_module(made, tmp_path, name="tower", example=[torch.tensor([[1, 2], [3, 4]])])
    assert list(tmp_path.glob("[0-9]*")) == []
    if isinstance(made, Tower):
        assert isinstance(made.bag, mt.nn.EmbeddingBag)


def test_an_example_that_does_not_fit_forward_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not fit forward"):
        export_module(Tower(), tmp_path, name="tower", example={"rows": 1})


class _Options(Tower):
    def forward(self, ids: Tensor, **options: Any) -> Tensor:
        return super().forward(ids) * options["price"]


def test_a_further_argument_by_name_is_a_dense_input(tmp_path: Path) -> None:
    ids, prices = torch.tensor([[1, 2], [3, 4]]), torch.tensor([2.0, 3.0])
    module = _Options().eval()
    path = export_module(module, tmp_path, name="tower", example={"ids": ids, "price": prices})
    found = Servable.load(path).predict_features({"bag": ids.tolist(), "price": [[2.0], [3.0]]})
    np.testing.assert_allclose(found["score"], module(ids, price=prices).detach().numpy(), rtol=1e-5, atol=1e-6)
