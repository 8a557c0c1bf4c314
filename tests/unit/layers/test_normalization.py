from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from monolith import layers
from monolith.core.errors import ConfigError


def test_training_uses_the_batch_and_evaluation_the_kept_moments() -> None:
    norm = layers.BatchNorm(momentum=0.75)
    x = torch.tensor([[1.0], [3.0]])
    torch.testing.assert_close(norm(x), torch.tensor([[-1.0], [1.0]]))
    assert norm.moving_mean.item() == 0.5
    assert norm.moving_variance.item() == 1.0
    torch.testing.assert_close(norm.eval()(x), torch.tensor([[0.5], [2.5]]))
    assert norm.moving_mean.item() == 0.5


def test_statistics_are_per_position_or_pooled() -> None:
    x = torch.randn(4, 2, 3)
    apart, pooled = layers.BatchNorm(), layers.BatchNorm(pool_positions=True)
    apart(x)
    pooled(x)
    assert apart.moving_mean.shape == (2, 3)
    assert pooled.moving_mean.shape == (3,)
    torch.testing.assert_close(pooled.moving_mean, 0.01 * x.mean((0, 1)))


def test_a_batch_norm_is_torchs_own_on_rows() -> None:
    torch.manual_seed(1)
    ours, theirs = layers.BatchNorm(epsilon=1e-5), torch.nn.BatchNorm1d(3)
    x = torch.randn(8, 3)
    torch.testing.assert_close(ours(x), theirs(x))


def test_mixed_moments() -> None:
    norm = layers.BatchNorm(training_use_global_dist=True, global_dist_momentum=1.0, epsilon=1e-12)
    x = torch.tensor([[1.0], [3.0]])
    torch.testing.assert_close(norm(x), x)


def test_stopped_moments_leave_a_plain_scale_as_gradient() -> None:
    norm = layers.BatchNorm(stop_grad_of_var_mean=True, epsilon=1e-12)
    x = torch.tensor([[1.0], [5.0]], requires_grad=True)
    norm(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((2, 1), 0.5))


def test_renormalisation_starts_from_the_kept_moments() -> None:
    # Kept mean 0 and deviation 1: the correction undoes the batch's own normalisation.
    norm = layers.BatchNorm(renorm=True, epsilon=1e-9, renorm_momentum=0.5)
    x = torch.tensor([[1.0], [5.0]])
    torch.testing.assert_close(norm(x), x)
    assert norm.renorm_mean.item() == 1.5
    assert norm.renorm_stddev.item() == 1.5


def test_renormalisation_is_clipped() -> None:
    norm = layers.BatchNorm(renorm=True, renorm_clipping={"rmax": 1.0, "rmin": 1.0, "dmax": 0.0}, epsilon=1e-9)
    torch.testing.assert_close(norm(torch.tensor([[1.0], [5.0]])), torch.tensor([[-1.0], [1.0]]))


def test_without_center_and_scale_there_is_nothing_to_train() -> None:
    norm = layers.BatchNorm(center=False, scale=False)
    norm(torch.randn(4, 2))
    assert list(norm.parameters()) == []


def test_grad_norm_trains_its_weights_towards_balance() -> None:
    layer = layers.GradNorm(["large", "small"])
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)
    shared = torch.ones(1, 2, requires_grad=True)
    for _ in range(300):
        optimizer.zero_grad()
        balance, _ = layer({"small": shared.sum(), "large": 3 * shared.sum()}, [shared])
        balance.backward()
        optimizer.step()
    torch.testing.assert_close(layer.weights.detach(), torch.tensor([0.25, 0.75]), rtol=0.02, atol=0.01)


def test_grad_norm_has_a_true_gradient() -> None:
    layer = layers.GradNorm(["a", "b", "c"], loss_pow=1.5, relative_diff=True).double()
    norms = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)

    def balance(logits: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(_Balance(layer), {"layer.logits": logits}, (norms,))

    start = torch.tensor([0.1, -0.2, 0.3], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(balance, (start,))


class _Balance(torch.nn.Module):
    def __init__(self, layer: layers.GradNorm) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, norms: torch.Tensor) -> torch.Tensor:
        return self.layer.balance(norms)


def test_grad_norm_weighs_the_losses_without_a_gradient_to_its_weights() -> None:
    layer = layers.GradNorm(["a", "b"])
    shared = torch.ones(1, 1, requires_grad=True)
    _, total = layer([2 * shared.sum(), 4 * shared.sum()], [shared])
    total.backward()
    assert shared.grad is not None
    assert shared.grad.item() == 3.0
    assert layer.logits.grad is None


def test_a_loss_that_does_not_touch_the_shared_tensors_counts_zero() -> None:
    shared, other = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    balance, _ = layers.GradNorm(["a", "b"])([other.sum(), 2 * shared.sum()], [shared])
    assert balance.item() == pytest.approx(0.5)


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: layers.BatchNorm(momentum=1.5), "BatchNorm.momentum is 1.5"),
    (lambda: layers.BatchNorm(renorm_clipping={"rmax": 1.0}), "without renorm"),
    (lambda: layers.BatchNorm(renorm=True, renorm_clipping={"max": 1.0}), "unknown key 'max'"),
    (lambda: layers.BatchNorm(renorm=True, training_use_global_dist=True), "choose one"),
    (lambda: layers.BatchNorm()(torch.zeros(3)), r"shape \(3,\)"),
    (lambda: layers.GradNorm([]), "loss_names is"),
    (lambda: layers.GradNorm(["a", "a"]), "none twice"),
    (lambda: layers.GradNorm(["a"])([], []), "0 losses for 1 loss_names"),
    (lambda: layers.GradNorm(["a"])({"b": torch.zeros(1)}, []), r"losses \['b'\]"),
    (lambda: layers.GradNorm(["a"])([torch.zeros(1)], []), "no shared tensor"),
    (lambda: layers.SumPooling()([]), "SumPooling got an empty list"),
    (lambda: layers.MaxPooling()([torch.zeros(1), torch.zeros(2)]), "all must be the same"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_wrong_arguments_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_single_tensor_is_pooled_as_it_is() -> None:
    x = torch.ones(2)
    assert layers.AvgPooling()([x]) is x


@pytest.mark.parametrize(
    "options", [{}, {"renorm": True}, {"training_use_global_dist": True}, {"pool_positions": True}]
)
def test_a_batch_without_examples_leaves_the_kept_moments(options: dict[str, bool]) -> None:
    norm = layers.BatchNorm(**options)
    norm(torch.randn(4, 2))
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    empty = norm(torch.zeros(0, 2))
    assert empty.shape == (0, 2)
    empty.sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() == 0 for weight in norm.parameters())
    torch.testing.assert_close(norm.state_dict(), before)


@pytest.mark.parametrize("renorm", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_rows_of_another_precision_move_the_kept_moments(dtype: torch.dtype, renorm: bool) -> None:
    x = torch.randn(64, 3).to(dtype)
    norm, expected = layers.BatchNorm(renorm=renorm), layers.BatchNorm(renorm=renorm)
    torch.testing.assert_close(norm(x).float(), expected(x.float()))
    torch.testing.assert_close(norm.state_dict(), expected.state_dict())


def test_a_tower_with_batch_norm_trains_in_mixed_precision() -> None:
    tower = layers.MLP([4, 1], enable_batch_normalization=True)
    with torch.autocast("cpu", torch.bfloat16):
        tower(torch.randn(8, 3)).float().sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in tower.parameters())


def test_equal_gradients_have_nothing_to_balance_for_any_power() -> None:
    shared = torch.ones(1, 1, requires_grad=True)
    layer = layers.GradNorm(["a", "b"], loss_pow=0.5)
    balance, _ = layer([shared.sum(), shared.sum()], [shared])
    balance.backward()
    assert balance.item() == 0
    assert layer.logits.grad is not None
    assert layer.logits.grad.tolist() == [0.0, 0.0]
