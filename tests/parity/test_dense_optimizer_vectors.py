"""Golden numbers of the original's dense optimizers (``native_training/optimizers``)."""

from __future__ import annotations

import pytest
import torch

from monolith.layers import Adamom, DenseRmsProp


def weight_with_gradient() -> torch.nn.Parameter:
    weight = torch.nn.Parameter(torch.tensor([0.1], dtype=torch.float64))
    weight.grad = torch.tensor([0.12], dtype=torch.float64)
    return weight


def test_adamom() -> None:
    weight = weight_with_gradient()
    optimizer = Adamom([weight], 0.1, ada_decay=0.99, mom_decay=0.9, weight_decay=0.01)
    optimizer.step()
    state = optimizer.state[weight]
    assert state["m"].item() == pytest.approx(0.0121)
    assert state["v"].item() == pytest.approx(0.014641)
    assert state["c"].item() == 1.0
    assert weight.item() == pytest.approx(0.090000336, abs=1e-8)


@pytest.mark.parametrize(
    ("use_v2", "v", "m", "expected"),
    [(False, 0.00484, 0.06794526153774846, 0.03205473846225154), (True, 0.0484, 0.06875, 0.03125)],
)
def test_rmsprop(use_v2: bool, v: float, m: float, expected: float) -> None:
    weight = weight_with_gradient()
    optimizer = DenseRmsProp([weight], 0.1, beta1=0.9, beta2=0.9, epsilon=0.1, weight_decay=1.0, use_v2=use_v2)
    optimizer.step()
    state = optimizer.state[weight]
    assert state["v"].item() == pytest.approx(v, rel=1e-12)
    assert state["m"].item() == pytest.approx(m, rel=1e-12)
    assert weight.item() == pytest.approx(expected, rel=1e-12)
