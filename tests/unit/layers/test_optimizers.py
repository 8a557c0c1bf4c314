from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from monolith.core.errors import ConfigError
from monolith.layers import Adamom, DenseRmsProp, Shampoo
from monolith.layers.shampoo import inverse_root

MAKERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamom": lambda params: Adamom(params, 0.03, mom_decay=0.9),
    "adamom v2": lambda params: Adamom(params, 0.03, mom_decay=0.9, use_v2=True, weight_decay=0.01),
    "rmsprop": lambda params: DenseRmsProp(params, 0.001, beta1=0.9),
    "rmsprop v2": lambda params: DenseRmsProp(params, 0.01, beta1=0.9, use_v2=True, weight_decay=0.01),
    "shampoo": lambda params: Shampoo(params, 0.1, warmup=2, tau_1=2, tau_2=1),
    "shampoo, moving average": lambda params: Shampoo(params, 0.1, beta_2=0.9, warmup=0, tau_1=1, tau_2=1),
}


@pytest.fixture(params=MAKERS, name="make")
def _make(request: pytest.FixtureRequest) -> Callable[[Any], torch.optim.Optimizer]:
    return MAKERS[request.param]


def small_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(8, 3, dtype=torch.float64, generator=generator)
    optimizer.zero_grad()
    loss: Tensor = (model(x).squeeze(1) - x.sum(1)).square().sum()
    loss.backward()
    optimizer.step()
    return loss.item()


def test_the_loss_falls(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    model = small_model()
    optimizer = make(model.parameters())
    first = sum(step(model, optimizer, number) for number in range(5))
    for number in range(5, 60):
        step(model, optimizer, number)
    last = sum(step(model, optimizer, number) for number in range(5))
    assert last < 0.5 * first


def test_a_saved_state_resumes_exactly(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    model = small_model()
    optimizer = make(model.parameters())
    for number in range(5):
        step(model, optimizer, number)
    stored = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, stored)
    for number in range(5, 9):
        step(model, optimizer, number)

    stored.seek(0)
    loaded = torch.load(stored, weights_only=True)
    twin = small_model()
    twin.load_state_dict(loaded["model"])
    twin_optimizer = make(twin.parameters())
    twin_optimizer.load_state_dict(loaded["optimizer"])
    for number in range(5, 9):
        step(twin, twin_optimizer, number)
    for left, right in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(left, right)


def test_a_weight_without_gradient_is_left_alone(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    weight = nn.Parameter(torch.ones(2))
    make([weight]).step()
    assert weight.tolist() == [1.0, 1.0]


def test_a_scheduler_steers_the_rate(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = make([weight])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 0.0)
    weight.grad = torch.ones(2)
    optimizer.step()
    scheduler.step()
    assert weight.tolist() == [1.0, 1.0]


def test_a_closure_is_called_with_gradients(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = make([weight])

    def closure() -> float:
        loss = weight.square().sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 2.0
    assert (weight < 1).all()


def test_sparse_gradients_are_refused(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.sparse_coo_tensor(torch.tensor([[0]]), torch.tensor([1.0]), (2,), check_invariants=False)
    with pytest.raises(ConfigError, match="embedding rows are trained by their table"):
        make([weight]).step()


def test_scalars_and_empty_weights_are_trained_too(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    scalar, empty = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.zeros(0, 3))
    scalar.grad, empty.grad = torch.tensor(1.0), torch.zeros(0, 3)
    optimizer = make([scalar, empty])
    for _ in range(4):
        optimizer.step()
    assert scalar.item() < 1.0


# --- Shampoo ----------------------------------------------------------------------------------------------------------


def power(matrix: Tensor, exponent: float, floor: float) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(values.clamp_min(floor) ** exponent) @ vectors.t()


def test_warm_up_is_diagonal_adagrad_with_momentum() -> None:
    weight = nn.Parameter(torch.ones(2, 3, dtype=torch.float64))
    optimizer = Shampoo([weight], 0.1, warmup=10)
    d, m, expected = torch.zeros(2, 3).double(), torch.zeros(2, 3).double(), weight.detach().clone()
    for number in range(4):
        weight.grad = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(number))
        d += weight.grad**2
        m = 0.9 * m + 0.1 * weight.grad / torch.sqrt(d)
        expected -= 0.1 * m
        optimizer.step()
    torch.testing.assert_close(weight.detach(), expected)


@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 3, 2)])
def test_past_the_warm_up_each_axis_is_preconditioned(shape: tuple[int, ...]) -> None:
    weight = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
    optimizer = Shampoo([weight], 0.1, beta_1=0.0, warmup=0, tau_1=1, tau_2=1)
    statistics = [torch.zeros(size, size, dtype=torch.float64) for size in shape]
    d, expected = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    for number in range(3):
        g = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(number))
        weight.grad = g
        optimizer.step()
        d += g**2
        step_direction = g
        for axis in range(len(shape)):
            rows = g.movedim(axis, 0).reshape(shape[axis], -1)
            statistics[axis] += rows @ rows.t()
            root = power(statistics[axis], -1 / (2 * len(shape)), 1e-3)
            step_direction = torch.tensordot(root, step_direction, dims=([1], [axis])).movedim(0, axis)
        plain = g / torch.sqrt(d)
        expected -= 0.1 * plain.norm() / step_direction.norm() * step_direction
    torch.testing.assert_close(weight.detach(), expected)


def test_a_long_axis_is_left_as_it_is() -> None:
    weight = nn.Parameter(torch.zeros(5, 3, dtype=torch.float64))
    optimizer = Shampoo([weight], 1.0, beta_1=0.0, warmup=0, tau_1=1, tau_2=1, max_axis_size=4)
    g = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    weight.grad = g
    optimizer.step()
    direction = g @ power(g.t() @ g, -1 / 2, 1e-3)
    torch.testing.assert_close(weight.detach(), -torch.sign(g).norm() / direction.norm() * direction)
    assert [statistic.shape for statistic in optimizer.state[weight]["statistics"]] == [(0, 0), (3, 3)]


def test_the_preconditioned_step_is_blended_in_over_a_second_warm_up() -> None:
    weight = nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))
    optimizer = Shampoo([weight], 1.0, warmup=2, tau_1=1, tau_2=1)
    for number in range(3):
        weight.grad = torch.randn(2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(number))
        before = weight.detach().clone()
        optimizer.step()
    state = optimizer.state[weight]
    m, pm = state["m"], state["pm"]
    half = 0.5 * m + 0.5 * m.norm() / pm.norm() * pm
    torch.testing.assert_close(before - weight.detach(), half)


def test_statistics_and_roots_are_refreshed_at_their_own_pace() -> None:
    weight = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = Shampoo([weight], 0.1, warmup=2, tau_1=3, tau_2=2)
    sums, roots = [], []
    for _ in range(7):
        weight.grad = torch.ones(2, dtype=torch.float64)
        optimizer.step()
        sums.append(optimizer.state[weight]["statistics"][0][0, 0].item())
        roots.append([part.tolist() for part in copy.deepcopy(optimizer.state[weight]["powers"])])
    assert sums == [1, 1, 2, 2, 3, 3, 4]
    assert roots[0] == roots[1] == []
    assert roots[2] == roots[3] == roots[4] != []
    assert roots[5] == roots[6] != roots[4]


def test_a_truncated_root_keeps_both_ends_and_averages_the_powers_between() -> None:
    torch.manual_seed(1)
    basis, _ = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))
    values = torch.tensor([0.0, 0.25, 1.0, 4.0, 9.0, 16.0], dtype=torch.float64)
    matrix = basis @ torch.diag(values) @ basis.t()
    vectors, powers, offset = inverse_root(matrix, 2, 1, 2, 0.01)
    root = vectors @ torch.diag(powers - offset) @ vectors.t() + offset * torch.eye(6, dtype=torch.float64)
    # Kept: .25 (the smallest above the floor), 9 and 16. The rest, floored: .01, 1 and 4.
    mean = (10 + 1 + 0.5) / 3
    expected = torch.tensor([mean, 2.0, mean, mean, 1 / 3, 0.25], dtype=torch.float64)
    torch.testing.assert_close(root, basis @ torch.diag(expected) @ basis.t())


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: Adamom([nn.Parameter(torch.ones(1))], -1.0), "Adamom.learning_rate is -1.0"),
    (lambda: Adamom([nn.Parameter(torch.ones(1))], ada_decay=1.5), "ada_decay is 1.5"),
    (lambda: DenseRmsProp([nn.Parameter(torch.ones(1))], epsilon=0.0), "epsilon is 0.0"),
    (lambda: Shampoo([nn.Parameter(torch.ones(1))], tau_1=0), "tau_1 is 0"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_wrong_settings_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
