from __future__ import annotations

import pytest
import torch

from monolith import layers
from monolith.core.errors import ConfigError


def test_the_count_does_not_depend_on_the_loss() -> None:
    counter = torch.tensor([1.0, 5.0], requires_grad=True)
    (123.0 * layers.fid_counter(counter, 10.0, 0.5).sum()).backward()
    assert counter.grad is not None
    assert counter.grad.tolist() == [-0.5, -0.5]


def test_the_counter_exports() -> None:
    class Counter(torch.nn.Module):
        def forward(self, counter: torch.Tensor) -> torch.Tensor:
            return layers.fid_counter(counter, 10.0)

    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(Counter(), (torch.ones(3),), dynamic_shapes=({0: batch},)).module()
    assert program(torch.tensor([1.0, 20.0])).tolist() == [2.0, 10.0]


def test_sampling_and_insight_export() -> None:
    class Small(torch.nn.Module):
        def forward(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return layers.sample_subset(x, 2), layers.feature_insight(x, weight, [1, 3])

    shapes = ({0: torch.export.Dim("batch", min=2)}, None)
    x, weight = torch.randn(3, 4), torch.randn(4, 2)
    program = torch.export.export(Small(), (x, weight), dynamic_shapes=shapes).module()
    subset, insight = program(x.repeat(2, 1), weight)
    torch.testing.assert_close(subset.sum(1), torch.full((6,), 2.0))
    torch.testing.assert_close(insight, layers.feature_insight(x, weight, [1, 3]).repeat(2, 1))


def test_insight_parts_sum_to_the_product() -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(4, 6), torch.randn(6, 3)
    parts = layers.feature_insight(x, weight, [1, 2, 3]).reshape(4, 3, 3)
    torch.testing.assert_close(parts.sum(1), x @ weight)
    torch.testing.assert_close(layers.feature_insight(x, weight, [1, 2, 3], aggregate=True), parts.square().sum(2))


def test_a_cold_top_k_is_the_top_k() -> None:
    w = torch.tensor([[0.3, -1.0, 2.0, 1.0], [5.0, 4.0, 3.0, 2.0]])
    soft = layers.continuous_topk(w, 2, t=0.01)
    torch.testing.assert_close(soft, torch.tensor([[0.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]]), rtol=0, atol=1e-4)


def test_subsets_are_drawn_in_proportion_and_repeat_with_a_generator() -> None:
    w = torch.log(torch.tensor([8.0, 1.0, 1.0])).expand(4000, 3)
    keys = layers.gumbel_keys(w, torch.Generator().manual_seed(1))
    assert torch.equal(keys, layers.gumbel_keys(w, torch.Generator().manual_seed(1)))
    first = torch.bincount(keys.argmax(1), minlength=3) / 4000
    torch.testing.assert_close(first, torch.tensor([0.8, 0.1, 0.1]), rtol=0, atol=0.03)


def test_sampled_subsets_have_true_gradients() -> None:
    w = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()

    def sample(weights: torch.Tensor) -> torch.Tensor:
        return layers.sample_subset(weights, 2, 0.5, torch.Generator().manual_seed(2))

    assert torch.autograd.gradcheck(sample, (w,))
    torch.testing.assert_close(sample(w).sum(1), torch.full((2,), 2.0, dtype=torch.float64))


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ConfigError, match="k is 5, w has 4 items"):
        layers.continuous_topk(torch.zeros(4), 5)
    with pytest.raises(ConfigError, match=r"t is 0\.0"):
        layers.sample_subset(torch.zeros(4), 2, 0.0)
    with pytest.raises(ConfigError, match=r"step is 0\.0"):
        layers.fid_counter(torch.zeros(1), 10.0, 0.0)


def test_logit_correction_without_rate_and_bias_is_the_logit() -> None:
    x = torch.randn(3)
    assert torch.equal(layers.LogitCorrection()(x), x)
    torch.testing.assert_close(layers.LogitCorrection(sample_bias=True)(x), torch.log(torch.sigmoid(x)))
    torch.testing.assert_close(
        layers.LogitCorrection("sigmoid")(x, 0.5), torch.sigmoid(x - torch.log(torch.tensor(0.5)))
    )


def test_the_log_sigmoid_form_is_stable() -> None:
    out = layers.LogitCorrection(sample_bias=True)(torch.tensor([-500.0, 500.0]))
    assert out.tolist() == [-500.0, 0.0]
