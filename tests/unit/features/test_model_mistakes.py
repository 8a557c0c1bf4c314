"""Mistakes in the class of a model: each error names the class or feature, and the remedy."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import monolith as mt
from monolith.core.errors import ConfigError


class WithoutSuper(mt.Model):
    """Declares before ``super().__init__()``."""

    def __init__(self) -> None:
        self.embedding_feature("user_id", slot=1)


class WithoutDeclaration(mt.Model):
    """Has an ``__init__`` that does nothing."""

    def __init__(self) -> None:
        pass


class Undeclared(mt.Model):
    """Reads a dense input that it has not declared."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_feature("user_id", slot=1)
        self.dense_feature("age")
        self.bias = self.embedding_slice("user_id", "bias", dim=1)

    def forward(self, batch: Any) -> mt.Output:
        assert batch.dense.get("price") is None
        return mt.Output(logits=self.bias(batch).squeeze(1) + batch.dense["price"][:, 0], label=batch.label[:, 0])


def test_a_model_that_forgot_its_super_call_is_named() -> None:
    with pytest.raises(ConfigError, match=r"__init__ of WithoutSuper has not called super\(\).__init__\(\); call it"):
        WithoutSuper()
    with pytest.raises(ConfigError, match="__init__ of WithoutDeclaration has not called super"):
        mt.Estimator(WithoutDeclaration)


def test_an_undeclared_dense_feature_in_forward_is_named_with_the_declared_ones() -> None:
    batch = mt.Batch.from_arrays(ids={"user_id": [[7], [8]]}, dense={"age": [30, 40]}, label=[1, 0])
    message = r"dense feature 'price' is not declared; call self.dense_feature\('price'\).* Declared: 'age'$"
    with pytest.raises(ConfigError, match=message):
        Undeclared()(batch)


def test_the_declaration_of_a_model_is_its_own() -> None:
    first, second = Undeclared(), Undeclared()
    assert first.declaration is not second.declaration
    assert list(first.declaration.dense) == ["age"]
    assert isinstance(first, torch.nn.Module)
