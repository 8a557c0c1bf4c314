"""Losses for delayed feedback: exact on worked examples, and without bias on a fast stream."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.layers.losses import DelayedFeedback, delayed_feedback_loss
from monolith.layers.losses.heads import sigmoid_loss_and_pred

METHODS: tuple[DelayedFeedback, ...] = ("fnw", "fnc")

# z, r, then loss of y = 1 and y = 0, gradient of y = 1 and y = 0
WORKED = {
    "fnw": [
        (0, 1, 1.039721, 0.519860, -0.750000, 0.375000),
        (0, 0.1, 0.415888, 2.079442, -0.300000, 1.500000),
        (-1, 1, 1.666452, 0.290604, -0.927671, 0.249489),
        (-1, 0.1, 0.484517, 0.844923, -0.269718, 0.725383),
        (2, 1, 0.238726, 0.476850, -0.224197, 0.197472),
    ],
    "fnc": [
        (0, 1, 1.098612, 0.405465, -0.333333, 0.166667),
        (0, 0.1, 0.182322, 1.791759, -0.083333, 0.416667),
        (-1, 1, 1.551445, 0.238183, -0.576117, 0.154942),
        (-1, 0.1, 0.316144, 1.305468, -0.198150, 0.532908),
        (2, 1, 0.758624, 0.631696, -0.063379, 0.055824),
    ],
}


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def loss_and_gradient(method: DelayedFeedback, z: float, y: float, r: float) -> tuple[float, float]:
    logits = double(z).requires_grad_()
    loss = delayed_feedback_loss(logits, double(y), double(r), method=method)
    loss.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    return loss.item(), logits.grad.item()


def expected_gradient(method: DelayedFeedback | None, p: float, q: float, r: float) -> float:
    """Return the mean gradient of an impression: r negatives and q positives."""
    z = torch.logit(double(p)).item()
    if method is None:
        return r * p + q * (p - 1)
    return r * loss_and_gradient(method, z, 0, r)[1] + q * loss_and_gradient(method, z, 1, r)[1]


@pytest.mark.parametrize(
    ("method", "row"), [(method, row) for method in METHODS for row in WORKED[method]], ids=lambda value: str(value)
)
def test_the_worked_examples_hold(method: DelayedFeedback, row: tuple[float, ...]) -> None:
    z, r, *expected = row
    positive, negative = (loss_and_gradient(method, z, y, r) for y in (1, 0))
    numbers = [positive[0], negative[0], positive[1], negative[1]]
    assert numbers == pytest.approx(expected, abs=6e-7)


def test_the_expected_gradients_of_the_worked_example_hold() -> None:
    assert expected_gradient("fnw", 0.5, 0.25, 1) == pytest.approx(0.1875)
    assert expected_gradient(None, 0.5, 0.25, 1) == pytest.approx(0.375)
    assert expected_gradient(None, 0.2, 0.25, 1) == pytest.approx(0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("q", [0.05, 0.25, 0.6])
@pytest.mark.parametrize("r", [1.0, 0.1])
def test_the_expected_gradient_leads_to_the_true_chance(method: DelayedFeedback, q: float, r: float) -> None:
    assert expected_gradient(method, q, q, r) == pytest.approx(0, abs=1e-12)
    assert expected_gradient(method, q * 0.9, q, r) < 0 < expected_gradient(method, q * 1.1, q, r)


@pytest.mark.parametrize(("method", "bias"), [("fnw", 1.0), ("fnc", 1.0), (None, 0.8)])
def test_only_a_corrected_loss_is_calibrated_on_a_fast_stream(
    method: Literal["fnw", "fnc"] | None, bias: float
) -> None:
    # 400 impressions of chance 0.25: each is a negative first, 100 are positives later.
    label = torch.cat([torch.zeros(400), torch.ones(100)]).double()
    z = double(0.0).requires_grad_()
    optimizer = torch.optim.SGD([z], lr=2.0)
    for _ in range(400):
        optimizer.zero_grad()
        logits = z.expand(500)
        if method is None:
            loss, _ = sigmoid_loss_and_pred(logits, label)
        else:
            loss = delayed_feedback_loss(logits, label, method=method)
        assert loss is not None
        (loss / 500).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert torch.sigmoid(z).item() / 0.25 == pytest.approx(bias, abs=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_masked_labels_add_neither_loss_nor_gradient(method: DelayedFeedback) -> None:
    logits = double(0.5, -3.0, 100.0).requires_grad_()
    label = double(1.0, float("nan"), -3.4e38)
    loss = delayed_feedback_loss(logits, label, double(0.5, 0.5, 0.5), method=method, mask=double(1, 0, 0))
    loss.backward()  # type: ignore[no-untyped-call]
    single, gradient = loss_and_gradient(method, 0.5, 1, 0.5)
    assert logits.grad is not None
    assert loss.item() == pytest.approx(single)
    assert logits.grad.tolist() == pytest.approx([gradient, 0, 0])


@pytest.mark.parametrize("method", METHODS)
def test_the_weight_of_an_example_multiplies_its_loss(method: DelayedFeedback) -> None:
    logits, label = double(0.5, -1.0), double(1, 0)
    first, second = (delayed_feedback_loss(logits[i : i + 1], label[i : i + 1], 0.5, method=method) for i in (0, 1))
    loss = delayed_feedback_loss(logits, label, 0.5, method=method, instance_weight=double(3, -1))
    assert loss.item() == pytest.approx(3 * first.item() - second.item())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("z", [-90.0, 90.0])
def test_extreme_logits_give_finite_losses(method: DelayedFeedback, z: float) -> None:
    logits = torch.tensor([z, z], requires_grad=True)
    loss = delayed_feedback_loss(logits, torch.tensor([0.0, 1.0]), 0.01, method=method)
    loss.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()


def test_an_unknown_method_raises() -> None:
    with pytest.raises(ConfigError, match="delayed_feedback is 'fnx'"):
        delayed_feedback_loss(torch.zeros(1), torch.zeros(1), method="fnx")  # type: ignore[arg-type]


@pytest.mark.parametrize("method", METHODS)
def test_labels_of_another_shape_raise(method: DelayedFeedback) -> None:
    with pytest.raises(ConfigError, match=r"label has shape \(2,\), logits \(3,\)"):
        delayed_feedback_loss(torch.zeros(3), torch.zeros(2), method=method)


@pytest.mark.parametrize("method", METHODS)
def test_a_weight_that_would_repeat_the_examples_is_refused(method: DelayedFeedback) -> None:
    with pytest.raises(ConfigError, match=r"instance_weight has shape \(4, 1\), logits \(4,\)"):
        delayed_feedback_loss(torch.zeros(4), torch.zeros(4), method=method, instance_weight=torch.ones(4, 1))
