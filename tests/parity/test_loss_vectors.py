"""Golden numbers of the original's losses and clipping (``native_training/losses``, ``native_model``, ``clip_ops``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from monolith.layers import batch_softmax_loss, clipping, inbatch_auc_loss, losses
from monolith.layers.losses import lambda_weights


def close(actual: Tensor, expected: Any, *, atol: float = 1e-7) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), rtol=1e-6, atol=atol)


def test_sigmoid_head() -> None:
    logits, label = torch.tensor([0.0, 1.0, -1.0]), torch.tensor([1.0, 0.0, 1.0])
    loss, pred = losses.sigmoid_loss_and_pred(logits, label, torch.tensor([0.5, 0.5, 1.0]))
    assert loss is not None
    close(loss, 3.58072160)
    close(pred, (0.5, 0.73105858, 0.26894142))


def test_batch_softmax_on_the_original_test_draw() -> None:
    random = np.random.RandomState(87654321)
    query, item = random.random_sample((4, 3)), random.random_sample((4, 3))
    interval = np.array([random.randint(1, 10) for _ in range(4)])
    assert interval.tolist() == [9, 9, 1, 7]
    loss = batch_softmax_loss(
        torch.tensor(query), torch.tensor(item), torch.tensor(interval), torch.ones(4, dtype=torch.float64)
    )
    close(loss.float(), 6.5931373)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, 1.61487166), ({"normalize": False}, 1.78540447), ({"temperature": 0.5}, 1.28945858)],
)
def test_batch_softmax(settings: dict[str, Any], expected: float) -> None:
    query, item = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    loss = batch_softmax_loss(query, item, torch.tensor([0, 4]), torch.tensor([1.0, 2.0]), **settings)
    close(loss, expected)


@pytest.mark.parametrize(
    ("neg_weight", "upstream", "gradient"),
    [
        (1.0, 2.0, (1.24172545, -1.20150730, -1.04105143, 1.00083328)),
        (0.5, 1.0, (0.62086273, -0.30037682, -0.26026286, 0.50041664)),
    ],
)
def test_inbatch_auc(neg_weight: float, upstream: float, gradient: tuple[float, ...]) -> None:
    logit = torch.tensor([0.5, -0.2, -0.4, 0.8], requires_grad=True)
    value = inbatch_auc_loss(torch.tensor([1.0, 0.0, 0.0, 1.0]), logit, neg_weight)
    close(value.detach(), -1.32088408)
    (value * upstream).backward()
    assert logit.grad is not None
    close(logit.grad, gradient)


LABELS = torch.tensor([[0.0, 2.0, 1.0], [1.0, 0.0, -1.0]])
SCORES = torch.tensor([[1.0, 3.0, 2.0], [0.5, 1.5, 9.0]])
NDCG = lambda_weights.ndcg_lambda_weight()
SMOOTH_NDCG = lambda_weights.ndcg_lambda_weight(smooth_fraction=1.0)


@pytest.mark.parametrize(
    ("key", "lambda_weight", "expected"),
    [
        ("pairwise_hinge_loss", None, 0.5),
        ("pairwise_logistic_loss", None, 0.54841027),
        ("pairwise_soft_zero_one_loss", None, 0.37683682),
        ("pairwise_logistic_loss", NDCG, 0.44545673),
        ("pairwise_logistic_loss", SMOOTH_NDCG, 0.45907634),
        ("softmax_loss", None, 1.76803979),
        ("sigmoid_cross_entropy_loss", None, 0.13285346),
        ("mean_squared_loss", None, 1.1),
    ],
)
def test_ranking_losses(key: str, lambda_weight: Any, expected: float) -> None:
    loss_fn = losses.make_loss_fn(key, lambda_weight=lambda_weight)
    close(loss_fn(LABELS, SCORES, {}), expected)


@pytest.mark.parametrize(
    ("key", "scores", "lambda_weight", "expected"),
    [
        ("list_mle_loss", [1.0, 3.0, 2.0], None, 0.72086765),
        ("list_mle_loss", [1.0, 3.0, 2.0], lambda_weights.p_list_mle_lambda_weight(3), 1.53607958),
        ("approx_ndcg_loss", [1.0, 3.0, 2.0], None, -0.99997294),
        ("approx_ndcg_loss", [3.0, 1.0, 2.0], None, -0.58688605),
    ],
)
def test_losses_of_whole_lists(key: str, scores: list[float], lambda_weight: Any, expected: float) -> None:
    loss_fn = losses.make_loss_fn(key, lambda_weight=lambda_weight, reduction="sum")
    close(loss_fn(torch.tensor([[0.0, 2.0, 1.0]]), torch.tensor([scores]), {}), expected)


def test_clip_by_global_norm() -> None:
    long = [torch.tensor([-3.0, 0.0, 0.0]), torch.tensor([4.0, 0.0, 0.0])]
    assert clipping.global_norm(long).item() == 5.0
    first, second = clipping.clip_by_global_norm(long, 4.0)
    close(first, [-2.4, 0.0, 0.0])
    close(second, [3.2, 0.0, 0.0])
    short = [torch.tensor([1.0, 0.0, 0.0])] * 2
    assert [part.tolist() for part in clipping.clip_by_global_norm(short, 4.0)] == [[1.0, 0.0, 0.0]] * 2
    assert clipping.clip_by_global_norm([torch.zeros(3)], 4.0)[0].tolist() == [0.0, 0.0, 0.0]
    endless = clipping.clip_by_global_norm([torch.tensor([float("inf"), 0.0])], 4.0)[0]
    assert torch.isnan(endless).all()


def test_one_norm_over_a_variable_and_an_embedding() -> None:
    variable, rows = torch.ones(1), torch.ones(4)
    config = clipping.ClippingConfig(clip_norm=1.0)
    dense, sparse = clipping.clip_gradients([torch.ones(1)], [torch.ones(3)], config)
    variable -= dense[0]
    rows[:3] -= sparse[0]
    assert variable.tolist() == [0.5]
    assert rows.tolist() == [0.5, 0.5, 0.5, 1.0]
