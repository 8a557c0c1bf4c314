from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

from monolith import layers
from monolith.core.errors import ConfigError
from monolith.layers import initializers, regularizers
from monolith.layers.layer import Layer


def test_an_optimizer_made_before_the_first_call_trains_the_weights() -> None:
    torch.manual_seed(1)
    tower = layers.MLP([4, 1])
    optimizer = torch.optim.SGD(tower.parameters(), lr=0.1)
    x = torch.randn(8, 3)
    first = tower(x)
    before = [parameter.detach().clone() for parameter in tower.parameters()]
    first.square().sum().backward()
    optimizer.step()
    changed = [not torch.equal(old, new) for old, new in zip(before, tower.parameters(), strict=True)]
    assert all(changed)


def test_a_checkpoint_of_other_shapes_is_refused_at_the_first_call() -> None:
    wide = layers.Dense(2, input_dim=5)
    dense = layers.Dense(2)
    dense.load_state_dict(wide.state_dict())
    with pytest.raises(ConfigError, match=r"Dense\.kernel has shape \(5, 2\), the input needs \(3, 2\)"):
        dense(torch.zeros(1, 3))


def test_weights_without_a_shape_are_not_saved() -> None:
    with pytest.raises(ConfigError, match=r"stack\.0 has weights without a shape, .* call the model once"):
        layers.MLP([2, 1]).state_dict()


def test_an_input_of_another_width_is_refused() -> None:
    dense = layers.Dense(2, input_dim=3)
    with pytest.raises(ConfigError, match="last dim 4, expected 3"):
        dense(torch.zeros(1, 4))


def test_losses_are_named_by_path_and_carry_gradients() -> None:
    model = nn.ModuleDict({"tower": layers.MLP([2, 1], kernel_regularizer="l2", bias_regularizer="l1", input_dim=3)})
    losses = layers.layer_losses(model)
    assert sorted(losses) == [
        "tower.stack.0.bias_penalty",
        "tower.stack.0.kernel_penalty",
        "tower.stack.2.bias_penalty",
        "tower.stack.2.kernel_penalty",
    ]
    torch.stack(list(losses.values())).sum().backward()
    kernel = model["tower"].dense_layers[0].kernel
    torch.testing.assert_close(kernel.grad, 0.02 * kernel.detach())


def test_a_layer_without_shapes_has_no_losses_yet() -> None:
    assert layers.layer_losses(layers.Dense(2, kernel_regularizer="l2")) == {}


def test_a_recorded_loss_is_not_pickled() -> None:
    gates = layers.MMoE(1, [2], num_experts=2, gate_type="topk")
    gates(torch.randn(4, 3))
    assert layers.layer_losses(gates)
    assert not layers.layer_losses(pickle.loads(pickle.dumps(gates)))


def test_all_names_exist_once() -> None:
    assert len(set(layers.__all__)) == len(layers.__all__)
    for name in layers.__all__:
        assert getattr(layers, name) is not None


def test_a_base_layer_without_parameters_is_built() -> None:
    assert Layer().is_built


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("glorot_uniform", -((6 / 300) ** 0.5), (6 / 300) ** 0.5),
        ("he_uniform", -((6 / 100) ** 0.5), (6 / 100) ** 0.5),
        ("lecun_uniform", -((3 / 100) ** 0.5), (3 / 100) ** 0.5),
        ("random_uniform", -0.05, 0.05),
    ],
)
def test_uniform_initializers_fill_their_range(name: str, low: float, high: float) -> None:
    torch.manual_seed(2)
    weight = torch.empty(100, 200)
    initializers.get(name)(weight)
    assert low <= weight.min() < 0.99 * low
    assert 0.99 * high < weight.max() <= high


@pytest.mark.parametrize(
    ("name", "spread"),
    [("glorot_normal", (2 / 300) ** 0.5), ("he_normal", (2 / 100) ** 0.5), ("random_normal", 0.05)],
)
def test_normal_initializers_have_their_spread(name: str, spread: float) -> None:
    torch.manual_seed(2)
    weight = torch.empty(100, 200)
    initializers.get(name)(weight)
    assert weight.std().item() == pytest.approx(spread, rel=0.03)
    assert abs(weight.mean().item()) < 0.05 * spread


def test_orthogonal_and_identity() -> None:
    weight = torch.empty(4, 4)
    initializers.get("orthogonal")(weight)
    torch.testing.assert_close(weight @ weight.t(), torch.eye(4))
    initializers.Identity(2.0)(weight)
    assert torch.equal(weight, 2 * torch.eye(4))


def test_a_torch_function_is_an_initializer() -> None:
    assert layers.Dense(2, kernel_initializer=nn.init.ones_, input_dim=2).kernel.tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: initializers.get("glorot_unifrom"), "'glorot_unifrom'; did you mean 'glorot_uniform'?"),
        (lambda: initializers.get(3), "initializer is 3; give a name"),
        (lambda: initializers.RandomUniform(1.0, 0.0), "RandomUniform.maxval is 0.0"),
        (lambda: initializers.Constant([1.0, 2.0])(torch.empty(3)), r"value has shape \(2,\), the weight \(3,\)"),
        (lambda: initializers.Identity()(torch.empty(3)), "fills matrices only"),
        (lambda: initializers.Orthogonal()(torch.empty(3)), "needs at least two axes"),
        (lambda: regularizers.get("l3"), "'l3'; give 'l1', 'l2', 'l1_l2'"),
        (lambda: regularizers.get(3), "regularizer is 3"),
        (lambda: regularizers.L2(-1.0), "L2.l2 is -1.0"),
    ],
)
def test_wrong_settings_are_named(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        make()  # type: ignore[operator]


def test_orthogonal_fills_half_precision() -> None:
    weight = torch.empty(4, 3, dtype=torch.bfloat16)
    initializers.get("orthogonal")(weight)
    torch.testing.assert_close(weight.float().t() @ weight.float(), torch.eye(3), atol=0.05, rtol=0.0)
