from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn

from monolith import layers
from monolith.core.errors import ConfigError
from monolith.layers import activations


def test_the_first_kernel_with_a_learned_norm_is_the_plain_one() -> None:
    torch.manual_seed(1)
    dense = layers.Dense(3, allow_kernel_norm=True, kernel_norm_trainable=True, input_dim=4)
    torch.testing.assert_close(dense.effective_kernel(), dense.kernel)


def test_the_norm_of_a_column_is_its_scale_however_the_kernel_grows() -> None:
    dense = layers.Dense(3, allow_kernel_norm=True, kernel_norm_trainable=True, input_dim=4)
    with torch.no_grad():
        dense.kernel.mul_(7)
        dense.kernel_scale.fill_(2.0)
    torch.testing.assert_close(dense.effective_kernel().norm(dim=0), torch.full((3,), 2.0))


def test_a_column_of_zeros_stays_finite() -> None:
    dense = layers.Dense(2, kernel_initializer="zeros", allow_kernel_norm=True, input_dim=2)
    dense(torch.ones(1, 2)).sum().backward()
    assert dense.kernel.grad is not None
    assert torch.isfinite(dense.kernel.grad).all()


def test_the_relu_monitor_counts_silent_rows_of_the_batch() -> None:
    dense = layers.Dense(2, "relu", kernel_initializer="ones", inactive_relu_monitor=True)
    x = torch.tensor([[-1.0], [-1.0], [-1.0], [1.0], [1.0]])
    dense(x)
    torch.testing.assert_close(dense.inactive_relu, torch.full((2,), 0.3))
    dense(x)
    torch.testing.assert_close(dense.inactive_relu, torch.full((2,), 0.57))
    dense.eval()(x)
    torch.testing.assert_close(dense.inactive_relu, torch.full((2,), 0.57))


def test_a_layer_may_have_its_own_optimizer() -> None:
    own = functools.partial(torch.optim.SGD, lr=1.0)
    model = nn.Sequential(
        layers.Dense(2, input_dim=2),
        layers.Dense(2, "prelu", optimizer=own, input_dim=2),
        nn.Linear(2, 1),
        layers.Dense(1, optimizer=own, input_dim=1),
    )
    model[1](torch.zeros(1, 2))
    groups = layers.split_by_optimizer(model)
    assert [(factory, len(parameters)) for factory, parameters in groups] == [(None, 4), (own, 5)]
    every = [parameter for _, parameters in groups for parameter in parameters]
    assert {id(parameter) for parameter in every} == {id(parameter) for parameter in model.parameters()}
    assert len(every) == len(list(model.parameters()))


@pytest.mark.parametrize(
    ("rows", "row_bytes", "max_bytes", "max_shards", "expected"),
    [(10, 4, 8, None, [2] * 5), (10, 4, 1, None, [1] * 10), (3, 4, 100, 5, [3]), (7, 4, 8, 3, [3, 2, 2])],
)
def test_rows_are_split_evenly(
    rows: int, row_bytes: int, max_bytes: int, max_shards: int | None, expected: list[int]
) -> None:
    assert layers.RowPartitioner(max_bytes, max_shards)(rows, row_bytes) == expected


def kinds(tower: layers.MLP) -> list[str]:
    return [type(layer).__name__ for layer in tower.stack]


def test_activations_of_a_tower() -> None:
    assert kinds(layers.MLP([2, 2, 1])) == ["Dense", "ReLU", "Dense", "ReLU", "Dense"]
    assert kinds(layers.MLP([2, 2], "tanh")) == ["Dense", "Tanh", "Dense"]
    assert kinds(layers.MLP([2, 2], [None, "sigmoid"])) == ["Dense", "Dense", "Sigmoid"]


def test_one_stateful_activation_is_copied_for_each_layer() -> None:
    tower = layers.MLP([2, 2, 1], activations.PReLU())
    slopes = [layer for layer in tower.stack if isinstance(layer, activations.PReLU)]
    assert len(slopes) == 2
    assert slopes[0] is not slopes[1]


def test_batch_norm_comes_before_the_first_and_between_dense_layers() -> None:
    tower = layers.MLP([2, 1], enable_batch_normalization=True, batch_normalization_momentum=0.5)
    assert kinds(tower) == ["BatchNorm", "Dense", "BatchNorm", "ReLU", "Dense"]
    assert tower.stack[0].momentum == 0.5
    assert tower.stack[0].epsilon == 1e-3


def test_a_tower_without_weight_norm_has_no_scales() -> None:
    names = {name.split(".")[-1] for name, _ in layers.MLP([2], use_weight_norm=False).named_parameters()}
    assert names == {"kernel", "bias"}
    fixed = layers.MLP([2], use_learnable_weight_norm=False, use_bias=False)
    assert {name.split(".")[-1] for name, _ in fixed.named_parameters()} == {"kernel"}


@pytest.mark.parametrize("settings", [{}, {"enable_batch_normalization": True}, {"use_bias": False}])
@pytest.mark.parametrize("leading", [(6,), (2, 3)])
def test_a_tower_takes_tensors_as_if_they_were_joined(leading: tuple[int, ...], settings: dict[str, bool]) -> None:
    generator = torch.Generator().manual_seed(3)
    parts = [torch.randn(*leading, width, generator=generator).requires_grad_() for width in (5, 0, 1, 3)]
    tower = layers.MLP([4, 2], **settings)  # type: ignore[arg-type]
    joined = copy.deepcopy(tower)
    torch.manual_seed(3)
    y = tower(parts)
    torch.manual_seed(3)
    expected = joined(torch.cat(parts, dim=-1))
    torch.testing.assert_close(y, expected)
    weights = torch.randn(y.shape, generator=generator)
    grads = torch.autograd.grad((y * weights).sum(), [*parts, *tower.parameters()])
    expected_grads = torch.autograd.grad((expected * weights).sum(), [*parts, *joined.parameters()])
    torch.testing.assert_close(grads, expected_grads)


def test_a_dense_layer_refuses_tensors_of_another_width_together() -> None:
    dense = layers.Dense(2, input_dim=3)
    with pytest.raises(ConfigError, match="the input of Dense has last dim 4, expected 3"):
        dense([torch.zeros(1, 2), torch.zeros(1, 2)])
    for each in (dense, layers.Dense(2)):
        with pytest.raises(ConfigError, match="the input of Dense is an empty list"):
            each([])


def test_a_tower_of_several_tensors_exports_as_one_product() -> None:
    tower = layers.MLP([4, 2], input_dim=8)
    program = torch.export.export(tower, ([torch.zeros(2, 5), torch.zeros(2, 3)],))
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert called.count("aten.cat.default") == 1
    assert not [each for each in called if "split" in each or "addmm" in each]


def test_feature_insight_of_a_tower_splits_its_first_product() -> None:
    torch.manual_seed(1)
    tower = layers.MLP([3, 1], use_bias=False)
    x = torch.randn(4, 5)
    tower(x)
    parts = tower.feature_insight(x, [2, 3], aggregate=False).reshape(4, 2, 3)
    torch.testing.assert_close(parts.sum(1), tower.stack[0](x))


def test_lhuc_gates_of_zero_input_change_nothing() -> None:
    torch.manual_seed(1)
    tower = layers.LHUCTower([3, 2])
    x = torch.randn(4, 5)
    gated = tower(x, torch.zeros(4, 2))
    plain = x
    for block in tower.blocks:
        plain = block(plain)
    torch.testing.assert_close(gated, plain)


def test_lhuc_gate_widths_in_their_three_forms() -> None:
    assert [gate.output_dims for gate in layers.LHUCTower([3, 2]).gates] == [[3], [2]]
    assert [gate.output_dims for gate in layers.LHUCTower([3, 2], [5]).gates] == [[5, 3], [5, 2]]
    assert [gate.output_dims for gate in layers.LHUCTower([3, 2], [[4, 3], [2]]).gates] == [[4, 3], [2]]


def test_lhuc_options_reach_the_gates_and_false_is_an_override() -> None:
    tower = layers.LHUCTower([2], use_weight_norm=True, lhuc_use_weight_norm=False, lhuc_use_bias=None)
    assert tower.blocks[0][0].allow_kernel_norm
    assert not tower.gates[0].dense_layers[0].allow_kernel_norm
    assert tower.gates[0].dense_layers[0].use_bias


def test_a_bias_of_channels_last_is_read_in_flat_order() -> None:
    layer = layers.AddBias()
    layer(torch.zeros(1, 2, 3))
    with torch.no_grad():
        layer.bias.copy_(torch.arange(6.0).reshape(2, 3))
    moved = layer(torch.zeros(1, 3, 2), "channels_first")
    assert moved.flatten().tolist() == [0, 1, 2, 3, 4, 5]


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: layers.MLP([]), r"MLP.output_dims is \[\]"),
    (lambda: layers.MLP([4, 0]), r"MLP.output_dims\[1\] is 0; give a whole number of at least 1"),
    (lambda: layers.MLP([4, 1], ["relu"]), "MLP.activations has 1 entries for 2 layers"),
    (lambda: layers.MLP([4, 1], initializers=["zeros"] * 3), "MLP.initializers has 3 entries for 2 layers"),
    (lambda: layers.MLP([4], "reluu"), "did you mean 'relu'"),
    (lambda: layers.Dense(2.5), "Dense.units is 2.5"),  # type: ignore[arg-type]
    (lambda: layers.Dense(2, kernel_norm_trainable=True), "kernel_norm_trainable is True without allow_kernel_norm"),
    (lambda: layers.Dense(2, inactive_relu_monitor_decay=2.0), "inactive_relu_monitor_decay is 2.0"),
    (lambda: layers.Dense(None)(torch.zeros(1, 1)), "Dense.units is None"),
    (lambda: layers.Dense(1, kernel_initializer="x"), "Dense.kernel initializer is 'x'"),
    (lambda: layers.RowPartitioner(0), "max_shard_bytes is 0"),
    (lambda: layers.LHUCTower([3], [[4, 2]]), r"lhuc_output_dims end in \[2\], output_dims are \[3\]"),
    (lambda: layers.LHUCTower([3], lhuc_use_wieght_norm=True), "did you mean 'lhuc_use_weight_norm'"),
    (lambda: layers.AddBias()(torch.zeros(1, 2), "channels"), "data_format is 'channels'"),
    (lambda: layers.AddBias()(torch.zeros(2)), r"shape \(2,\); give 2 to 5 axes"),
    (lambda: layers.feature_insight(torch.zeros(1, 3), torch.zeros(3, 1), [1, 1]), "segment_sizes sum to 2"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_wrong_arguments_are_named_with_a_remedy(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
