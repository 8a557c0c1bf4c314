from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.core.nested_map import NestedMap
from monolith.core.params import InstantiableParams
from monolith.layers import Dense, layer_losses
from monolith.layers.base_layer import BaseLayer


class Leaf(BaseLayer):
    def fprop(self, x: Tensor) -> Tensor:
        self.add_layer_loss("size", x.sum())
        self.add_layer_loss("size", x.sum())
        return x


class Parent(BaseLayer):
    def fprop(self, x: Tensor) -> Tensor:
        return self.dense(self.leaf(x))

    @property
    def broken(self) -> Any:
        raise AttributeError("the real reason")


def parent() -> Parent:
    layer: Parent = Parent.params().set(name="top").instantiate()
    layer.create_child("leaf", Leaf.params().set(name=""))
    layer.create_child("dense", Dense.params().set(units=2, input_dim=3))
    return layer


def test_params_have_the_class_and_its_name() -> None:
    p = Leaf.params()
    assert (p.cls, p.name) == (Leaf, "Leaf")
    assert isinstance(p, InstantiableParams)
    with pytest.raises(ConfigError, match="the parameter name of Leaf is ''"):
        p.set(name="").instantiate()


def test_a_child_is_an_attribute_a_module_and_has_the_parents_name_when_it_has_none() -> None:
    layer = parent()
    assert layer.leaf.p.name == "top"
    assert isinstance(layer.dense, Dense)
    assert dict(layer.named_children()) == {"leaf": layer.leaf, "dense": layer.dense}
    assert len(list(layer.parameters())) == 2
    assert isinstance(layer.sub_layers, NestedMap)
    assert layer.sub_layers.leaf is layer.leaf


def test_children_made_together_are_a_list_with_numbered_names() -> None:
    layer = Parent.params().instantiate()
    layer.create_children("leaves", [Leaf.params().set(name=None), Leaf.params().set(name="own")])
    assert [leaf.p.name for leaf in layer.leaves] == ["leaves_0", "own"]
    assert layer.sub_layers.leaves == list(layer.leaves)


def test_the_params_of_a_child_are_copied() -> None:
    p = Leaf.params().set(name="")
    layer = Parent.params().instantiate()
    layer.create_children("leaves", [p, p])
    assert p.name == ""
    assert [leaf.p.name for leaf in layer.leaves] == ["leaves_0", "leaves_1"]


@pytest.mark.parametrize("name", ["leaf", "p", "forward", "training"])
def test_a_name_that_is_taken_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"Parent has '{name}' already"):
        parent().create_child(name, Leaf.params())


def test_a_missing_child_is_named_and_a_failing_property_keeps_its_error() -> None:
    with pytest.raises(AttributeError, match=r"^tower is not a sub-layer of Parent\.$"):
        _ = parent().tower
    with pytest.raises(AttributeError, match="the real reason"):
        _ = parent().broken


def test_a_layer_without_fprop_is_abstract() -> None:
    with pytest.raises(NotImplementedError, match="Abstract method of BaseLayer"):
        BaseLayer.params().instantiate()(1)


def test_losses_are_added_up_within_a_call_and_found_like_those_of_any_layer() -> None:
    layer = parent()
    x = torch.ones(2, 3)
    for _ in range(2):  # the second call forgets the first
        layer(x)
    assert layer.get_layer_loss() == {"leaf.size": torch.tensor(12.0)}
    assert layer_losses(torch.nn.Sequential(layer)) == {"0.leaf.size": torch.tensor(12.0)}


def test_the_whole_goes_to_training_and_evaluation() -> None:
    layer = parent()
    layer.eval()
    assert not layer.leaf.training
    layer.double()
    assert layer.dense.kernel.dtype is torch.float64
