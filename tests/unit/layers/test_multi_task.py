from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from monolith import layers
from monolith.core.errors import ConfigError
from monolith.layers.mmoe import keep_top


def test_new_gates_average_the_experts() -> None:
    torch.manual_seed(1)
    layer, x = layers.MMoE(2, [4, 3], num_experts=3), torch.randn(5, 6)
    mean = torch.stack([expert(x) for expert in layer.experts]).mean(0)
    for task in layer(x):
        torch.testing.assert_close(task, mean)


def test_each_task_has_its_own_gates_from_the_gate_input() -> None:
    torch.manual_seed(1)
    layer = layers.MMoE(2, [[4, 3], [3]], ["tanh", "relu"])
    x, gate_input = torch.randn(5, 6), torch.randn(5, 2)
    layer(x, gate_input)
    assert layer.gate_kernel.shape == (2, 4)
    with torch.no_grad():
        layer.gate_kernel.normal_()
    outputs = torch.stack([expert(x) for expert in layer.experts], 2)
    for task, out in enumerate(layer(x, gate_input)):
        gates = torch.softmax(gate_input @ layer.gate_kernel[:, 2 * task : 2 * task + 2], 1)
        torch.testing.assert_close(out, torch.einsum("bde,be->bd", outputs, gates))


def test_ties_at_the_border_are_kept() -> None:
    assert keep_top(torch.tensor([0.25, 0.25, 0.5]), 2).tolist() == [0.25, 0.25, 0.5]


def test_imbalance_of_the_gates_is_a_loss_per_task_in_training_only() -> None:
    layer = layers.MMoE(2, [2], num_experts=2, gate_type="topk", top_k=1)
    x = torch.ones(4, 1)
    layer.eval()(x)
    assert layers.layer_losses(layer) == {}
    with torch.no_grad():
        layer.gate_kernel.copy_(torch.tensor([[5.0, 0.0, 0.0, 0.0]]))
    layer.train()(x)
    losses = layers.layer_losses(layer)
    # Task 0 sends all to one expert: importance (4, 0), mean 2, variance 4. Task 1 has a tie: (2, 2).
    assert {name: loss.item() for name, loss in losses.items()} == {"gate_importance_0": 1.0, "gate_importance_1": 0.0}


def test_gates_are_noisy_in_training_and_still_in_evaluation() -> None:
    torch.manual_seed(1)
    layer, x = layers.MMoE(1, [2], num_experts=4, gate_type="noise_topk", top_k=2), torch.randn(5, 3)
    layer(x)
    assert not torch.equal(layer.gates(x), layer.gates(x))
    layer.eval()
    assert torch.equal(layer.gates(x), layer.gates(x))


def test_options_reach_the_experts() -> None:
    layer = layers.MMoE(1, [3, 2], num_experts=2, use_weight_norm=False, enable_batch_normalization=True)
    assert type(layer.experts[0].stack[0]).__name__ == "BatchNorm"
    assert not layer.experts[1].dense_layers[0].allow_kernel_norm


def test_one_level_of_extraction_mixes_own_and_shared_experts() -> None:
    torch.manual_seed(1)
    layer, x = layers.PLE(2, [[3]], num_shared_experts=2, num_task_experts=1), torch.randn(4, 5)
    layer(x)
    level = layer.levels[0]
    with torch.no_grad():
        for gate in level.gates:
            gate.kernel.normal_()
    shared = [expert(x) for expert in level.shared_experts]
    for task, out in enumerate(layer(x)):
        mixed = torch.stack([level.task_experts[task][0](x), *shared], 1)
        gates = torch.softmax(x @ level.gates[task].kernel, 1)
        torch.testing.assert_close(out, (gates.unsqueeze(2) * mixed).sum(1))
    assert len(level.gates) == 2  # the last level has no gate of the shared experts, whose output would be unused


def test_later_levels_read_the_outputs_of_tasks_and_shared_experts() -> None:
    layer, x = layers.PLE(2, [[4], [3]], 1, 1), torch.randn(4, 5)
    first, second = layer.levels
    tasks, shared = first([x, x], x)
    assert len(first.gates) == 3
    assert first.gates[2](x).shape == (4, 3)
    expected, nothing = second(tasks, shared)
    assert nothing is None
    torch.testing.assert_close(layer(x), expected)


def test_snr_routes_are_weighed_by_their_switches() -> None:
    torch.manual_seed(1)
    layer = layers.SNR(2, 3).eval()
    inputs = [torch.randn(4, 2), torch.randn(4, 5)]
    layer(inputs)
    with torch.no_grad():
        layer.log_alpha.normal_()
    z = layer.switches()
    kernels = [layer.kernel[:2], layer.kernel[2:]]
    for j, out in enumerate(layer(inputs)):
        parts = [z[i, j] * inputs[i] @ kernels[i][:, 3 * j : 3 * j + 3] for i in range(2)]
        torch.testing.assert_close(out, sum(parts))


def test_each_route_is_drawn_with_its_own_fans() -> None:
    torch.manual_seed(1)
    layer = layers.SNR(3, 10)
    layer([torch.zeros(1, 290), torch.zeros(1, 10)])
    narrow, wide = layer.kernel[290:].abs().max().item(), layer.kernel[:290].abs().max().item()
    assert wide <= (6 / 300) ** 0.5 < narrow <= (6 / 20) ** 0.5


def test_switches_are_drawn_in_training() -> None:
    torch.manual_seed(1)
    layer = layers.SNR(50, 1, "aver")
    layer([torch.ones(1, 1)] * 4)
    drawn = layer.switches()
    assert drawn.shape == (4, 50)
    assert (drawn == 0).any()
    assert (drawn == 1).any()
    assert drawn.std() > 0.1


def test_a_straight_through_switch_has_a_gradient_where_it_is_clipped() -> None:
    for use_ste, is_moved in ((True, True), (False, False)):
        layer = layers.SNR(1, 1, "aver", use_ste=use_ste).eval()
        layer([torch.ones(1, 1)])
        with torch.no_grad():
            layer.log_alpha.fill_(8.0)
        layer([torch.ones(1, 1)])[0].sum().backward()
        assert layer.switches().item() == 1.0
        assert (layer.log_alpha.grad.abs().sum() > 0).item() is is_moved


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: layers.MMoE(2, [4]), "no argument is a list per expert; give num_experts"),
    (lambda: layers.MMoE(2, [[4], [3]]), r"end in \[4, 3\]; the last widths must be equal"),
    (lambda: layers.MMoE(2, [[4], [4]], num_experts=3), r"speak of \[2, 3\] experts"),
    (lambda: layers.MMoE(2, [4], num_experts=2, gate_type="top"), "gate_type is 'top'"),  # type: ignore[arg-type]
    (lambda: layers.MMoE(2, [4], num_experts=2, top_k=3), "top_k is 3, num_experts 2"),
    (lambda: layers.PLE(2, []), "level_output_dims is"),
    (lambda: layers.PLE(2, [[2]], 0, 1), "num_shared_experts is 0"),
    (lambda: layers.SNR(2, 2, "mean"), "snr_type is 'mean'"),  # type: ignore[arg-type]
    (lambda: layers.SNR(2, 2, gamma=0.1), "gamma is 0.1; give a number below 0"),
    (lambda: layers.SNR(2, 2, zeta=1.0), "SNR.zeta is 1.0"),
    (lambda: layers.SNR(2, 2, "aver")([torch.zeros(1, 3)]), r"got widths \[3\], out_subnet_dim is 2"),
    (lambda: layers.SNR(2, 2)([]), "empty list"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_wrong_arguments_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_snr_refuses_another_number_of_inputs() -> None:
    layer = layers.SNR(2, 2)
    layer([torch.zeros(1, 3)] * 2)
    with pytest.raises(ConfigError, match="got 3 inputs, it was built with 2"):
        layer([torch.zeros(1, 3)] * 3)


@pytest.mark.parametrize("gate_type", ["topk", "noise_topk"])
def test_a_batch_without_examples_has_balanced_gates(gate_type: Any) -> None:
    layer = layers.MMoE(2, [4], num_experts=3, gate_type=gate_type)
    layer(torch.zeros(0, 5))
    found = layers.layer_losses(layer)
    torch.stack(list(found.values())).sum().backward()
    assert [loss.item() for loss in found.values()] == [0.0, 0.0]
    assert layer.gate_kernel.grad is not None
    assert layer.gate_kernel.grad.abs().sum() == 0
