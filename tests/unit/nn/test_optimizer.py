"""Explicit updates: accumulation, clipping, loss scaling, schedulers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import monolith as mt
from monolith.core.errors import ConfigError


def make_bag(rate: float = 1.0) -> mt.nn.EmbeddingBag:
    return mt.nn.EmbeddingBag(2, optimizer=mt.Sgd(rate), initializer=mt.Zeros(), mode="sum")


def backward(bag: mt.nn.EmbeddingBag, *ids: int, scale: float = 1.0) -> None:
    (bag(torch.tensor([list(ids)])) * scale).sum().backward()


def test_backward_alone_changes_no_row() -> None:
    bag = make_bag()
    mt.nn.TableOptimizer(bag)
    backward(bag, 1)
    assert len(bag.table) == 0


def test_a_step_applies_the_sum_of_all_backward_passes() -> None:
    bag, reference = make_bag(), make_bag()
    optimizer = mt.nn.TableOptimizer(bag)
    backward(bag, 1, 2)
    backward(bag, 2, 3)
    optimizer.step()
    backward(reference, 1, 2, 2, 3)
    np.testing.assert_array_equal(bag.table.lookup([1, 2, 3]), reference.table.lookup([1, 2, 3]))
    assert bag.steps == 1


def test_gradients_stay_until_zero_grad_as_in_torch() -> None:
    bag = make_bag()
    optimizer = mt.nn.TableOptimizer(bag)
    backward(bag, 1)
    optimizer.step()
    optimizer.step()
    assert bag.table.lookup([1])[0, 0] == -2.0
    optimizer.zero_grad()
    optimizer.step()
    backward(bag, 5)
    optimizer.step()
    assert bag.table.lookup([1, 5])[:, 0].tolist() == [-2.0, -1.0]


def test_zero_grad_forgets_the_ids_of_earlier_steps() -> None:
    bag = make_bag()
    optimizer = mt.nn.TableOptimizer(bag)
    for number in range(3):
        backward(bag, number)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    assert all(each.grad is None for each in optimizer.parameters)
    backward(bag, 7)
    assert [tuple(each.grad.shape) for each in optimizer.parameters if each.grad is not None] == [(1, 2)]


def test_clipping_sees_one_gradient_per_distinct_id() -> None:
    bag = make_bag()
    optimizer = mt.nn.TableOptimizer(bag)
    backward(bag, 7, 7)
    backward(bag, 7)
    norm = torch.nn.utils.clip_grad_norm_(optimizer.parameters, max_norm=1.0)
    assert norm.item() == pytest.approx(3 * 2**0.5)
    optimizer.step()
    assert np.linalg.norm(bag.table.lookup([7])) == pytest.approx(1.0, rel=1e-4)


def test_a_grad_scaler_unscales_and_skips_steps_that_overflow() -> None:
    bag = make_bag()
    optimizer = mt.nn.TableOptimizer(bag)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(bag(torch.tensor([[1]])).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert bag.table.lookup([1]).tolist() == [[-1.0, -1.0]]
    optimizer.zero_grad()
    scaler.scale(bag(torch.tensor([[1]])).sum() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert bag.table.lookup([1]).tolist() == [[-1.0, -1.0]]
    assert scaler.get_scale() == 512.0


def test_a_scheduler_of_torch_drives_the_rate() -> None:
    bag = make_bag(rate=1.0)
    optimizer = mt.nn.TableOptimizer(bag)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        backward(bag, 1)
        optimizer.step()
        scheduler.step()
    assert bag.table.lookup([1])[0, 0] == -1.75


def test_every_table_of_a_model_has_a_group_with_its_rate() -> None:
    many = mt.nn.EmbeddingBagCollection(
        [mt.nn.Feature("user", 1, optimizer=mt.Sgd(0.25)), mt.nn.Feature("item", 1, optimizer=mt.Sgd(0.5))]
    )
    optimizer = mt.nn.TableOptimizer(torch.nn.Sequential(many))
    assert [(group["table"], group["lr"]) for group in optimizer.param_groups] == [("item", 0.5), ("user", 0.25)]


def test_a_closure_is_called_with_gradients_enabled() -> None:
    bag = make_bag()
    optimizer = mt.nn.TableOptimizer(bag)

    def closure() -> float:
        optimizer.zero_grad()
        loss = bag(torch.tensor([[1]])).sum()
        loss.backward()
        return loss.item()

    with torch.no_grad():
        assert optimizer.step(closure) == 0.0
    assert bag.table.lookup([1]).tolist() == [[-1.0, -1.0]]


def test_modules_that_the_optimizer_cannot_update_are_refused() -> None:
    with pytest.raises(ConfigError, match="Linear"):
        mt.nn.TableOptimizer(torch.nn.Linear(1, 1))
    bag = make_bag()
    mt.nn.TableOptimizer(bag)
    with pytest.raises(ConfigError, match="another"):
        mt.nn.TableOptimizer(bag)
    with pytest.raises(ConfigError, match="scheduler"):
        mt.nn.TableOptimizer(mt.nn.EmbeddingBag(2, optimizer=mt.Adagrad(0.1, warmup_steps=10)))
