"""Collections: many features in one call, shared tables, and the two forms of input."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import monolith as mt
from monolith.core.errors import ConfigError, DimensionMismatch

Bags = dict[str, tuple[Tensor, Tensor]]


def make_bags(**lists: list[list[int]]) -> Bags:
    return {
        name: (
            torch.tensor([number for each in bags for number in each], dtype=torch.int64),
            torch.tensor([0, *torch.tensor([len(each) for each in bags]).cumsum(0).tolist()]),
        )
        for name, bags in lists.items()
    }


class KeyedJagged:
    """The part of TorchRec's ``KeyedJaggedTensor`` that a collection reads."""

    def __init__(self, bags: Bags, weights: Tensor | None = None) -> None:
        self._bags, self._weights = bags, weights

    def keys(self) -> list[str]:
        return list(self._bags)

    def values(self) -> Tensor:
        return torch.cat([values for values, _ in self._bags.values()])

    def offsets(self) -> Tensor:
        lengths = torch.cat([offsets.diff() for _, offsets in self._bags.values()])
        return torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])

    def offset_per_key(self) -> list[int]:
        return [0, *torch.tensor([len(values) for values, _ in self._bags.values()]).cumsum(0).tolist()]

    def stride(self) -> int:
        return len(next(iter(self._bags.values()))[1]) - 1

    def weights_or_none(self) -> Tensor | None:
        return self._weights


class KeyedTensor:
    """TorchRec's result, found in the module of the input."""

    def __init__(self, keys: list[str], length_per_key: list[int], values: Tensor) -> None:
        self.names, self.widths, self.flat = keys, length_per_key, values


def test_a_collection_equals_one_module_per_feature() -> None:
    features = [
        mt.nn.Feature("user", 3, optimizer=mt.Sgd(0.5)),
        mt.nn.Feature("item", 2, mode="mean", optimizer=mt.Adagrad(0.5)),
    ]
    many = mt.nn.EmbeddingBagCollection(features)
    single = {
        "user": mt.nn.EmbeddingBag(spec=features[0].spec(), mode="sum", include_last_offset=True),
        "item": mt.nn.EmbeddingBag(spec=features[1].spec(), mode="mean", include_last_offset=True),
    }
    for bags in (make_bags(user=[[1], [2, 2]], item=[[], [7, 8]]), make_bags(user=[[2]], item=[[8, 8, 9]])):
        together = many(bags)
        for name, module in single.items():
            alone = module(*bags[name])
            torch.testing.assert_close(together[name], alone)
            alone.square().sum().backward()
        sum(each.square().sum() for each in together.values()).backward()
    ids = list(range(10))
    for name, module in single.items():
        torch.testing.assert_close(many.store[name].lookup(ids), module.table.lookup(ids))


def test_features_that_share_a_table_take_one_step_per_id() -> None:
    features = [mt.nn.Feature(name, 1, table="item", optimizer=mt.Sgd(1.0), initializer=mt.Zeros()) for name in "ab"]
    many = mt.nn.EmbeddingBagCollection(features)
    out = many(make_bags(a=[[5]], b=[[5, 6]]))
    (out["a"].sum() + 10 * out["b"].sum()).backward()
    assert many.store["item"].lookup([5, 6]).ravel().tolist() == [-11.0, -10.0]
    assert list(many.store) == ["item"]
    assert many.steps == 1


def test_a_sequence_collection_returns_one_row_per_id_and_updates_them() -> None:
    features = [
        mt.nn.Feature("seen", 2, table="item", optimizer=mt.Sgd(1.0), initializer=mt.Zeros(), padding=0),
        mt.nn.Feature("liked", 2, table="item", optimizer=mt.Sgd(1.0), initializer=mt.Zeros()),
        mt.nn.Feature("user", 3, optimizer=mt.Sgd(1.0), initializer=mt.Ones()),
    ]
    many = mt.nn.EmbeddingCollection(features)
    out = many(make_bags(seen=[[4, 0, 4]], liked=[[4], [5]], user=[[9]]))
    assert {name: tuple(rows.shape) for name, rows in out.items()} == {"seen": (3, 2), "liked": (2, 2), "user": (1, 3)}
    sum(rows.sum() for rows in out.values()).backward()
    assert many.store["item"].lookup([4, 5, 0])[:, 0].tolist() == [-3.0, -1.0, 0.0]
    assert len(many.store["item"]) == 2
    assert many.store["user"].lookup([9]).tolist() == [[0.0, 0.0, 0.0]]


def test_a_keyed_jagged_tensor_gives_a_keyed_tensor() -> None:
    many = mt.nn.EmbeddingBagCollection([mt.nn.Feature("user", 3), mt.nn.Feature("item", 2)]).eval()
    bags = make_bags(item=[[7, 8], []], user=[[1], [2, 2]])
    keyed, plain = many(KeyedJagged(bags)), many(bags)
    assert (keyed.names, keyed.widths) == (["user", "item"], [3, 2])
    torch.testing.assert_close(keyed.flat, torch.cat([plain["user"], plain["item"]], dim=1))


def test_weights_of_a_keyed_jagged_tensor_are_refused() -> None:
    many = mt.nn.EmbeddingBagCollection([mt.nn.Feature("user", 3)])
    with pytest.raises(ConfigError, match="weights"):
        many(KeyedJagged(make_bags(user=[[1]]), weights=torch.ones(1)))


@pytest.mark.parametrize(
    ("bags", "error", "match"),
    [
        ({}, ConfigError, "'user'"),
        (3, ConfigError, "int"),
        ({"user": (torch.tensor([1.0]), torch.tensor([0, 1]))}, ConfigError, "values of 'user'"),
        ({"user": (torch.tensor([1]), torch.tensor([0, 2]))}, DimensionMismatch, "'user'"),
        ({"user": torch.tensor([1, 2])}, ConfigError, "feature 'user' is a Tensor, expected .values, offsets."),
        ({"user": (torch.tensor([[1]]), torch.tensor([0, 1]))}, DimensionMismatch, "values of 'user' has shape .1, 1."),
        ({"user": (torch.tensor([1]), torch.tensor([[0, 1]]))}, DimensionMismatch, "offsets of 'user' has shape"),
    ],
)
def test_bad_input_names_the_feature(bags: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        mt.nn.EmbeddingBagCollection([mt.nn.Feature("user", 3)])(bags)


def test_bags_of_different_batch_sizes_are_refused() -> None:
    many = mt.nn.EmbeddingBagCollection([mt.nn.Feature("user", 3), mt.nn.Feature("item", 3)])
    with pytest.raises(DimensionMismatch):
        many(make_bags(user=[[1]], item=[[1], [2]]))


def test_features_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="'a'"):
        mt.nn.EmbeddingBagCollection([mt.nn.Feature("a", 2), mt.nn.Feature("a", 2)])
    with pytest.raises(ConfigError, match="'item'"):
        mt.nn.EmbeddingBagCollection([mt.nn.Feature("a", 2, table="item"), mt.nn.Feature("b", 3, table="item")])
    with pytest.raises(ConfigError, match="empty"):
        mt.nn.EmbeddingBagCollection([])
    with pytest.raises(ConfigError, match="'max'"):
        mt.nn.Feature("a", 2, mode="max")  # type: ignore[arg-type]


def test_a_compiled_collection_has_one_graph() -> None:
    many = mt.nn.EmbeddingBagCollection([mt.nn.Feature("user", 3), mt.nn.Feature("item", 3)])
    bags = make_bags(user=[[1], [2]], item=[[7, 8], []])
    graph = torch.compile(lambda each: sum(rows.sum() for rows in many(each).values()), fullgraph=True, backend="eager")
    graph(bags).backward()
    assert many.steps == 1
    assert len(many.store["item"]) == 2
