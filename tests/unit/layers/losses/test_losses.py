from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.layers import batch_softmax_loss, inbatch_auc_loss, losses
from monolith.layers.losses import lambda_weights

LABELS = torch.tensor([[0.0, 2.0, 1.0, -1.0], [1.0, 0.0, -1.0, 3.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
ITEM_WEIGHTS = torch.tensor([[1.0, 0.5, 2.0, 1.0], [0.3, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
LIST_WEIGHTS = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)
NDCG = lambda_weights.ndcg_lambda_weight(2, 0.3)

LossFn = Callable[[Tensor], Tensor]

# Every loss as a function of its logits (or of query rows).
LOSSES: dict[str, LossFn] = {
    "sigmoid": lambda x: losses.sigmoid_loss_and_pred(x, LABELS.clamp(0, 1), 0.3, sample_bias=True)[0],  # type: ignore[return-value, dict-item]
    "softmax head": lambda x: losses.softmax_loss_and_pred(x, LABELS.clamp(0, 1))[0],  # type: ignore[return-value, dict-item]
    "batch softmax": lambda x: batch_softmax_loss(x, x.flip(1), LIST_WEIGHTS * 9, LIST_WEIGHTS, True, 0.7),
    "inbatch auc": lambda x: inbatch_auc_loss(LABELS, x),
    "hinge": lambda x: losses.pairwise_hinge_loss(LABELS, x, ITEM_WEIGHTS),
    "logistic": lambda x: losses.pairwise_logistic_loss(LABELS, x, LIST_WEIGHTS, NDCG),
    "soft zero one": lambda x: losses.pairwise_soft_zero_one_loss(LABELS, x, reduction="sum"),
    "softmax": lambda x: losses.softmax_loss(LABELS, x, ITEM_WEIGHTS, reduction="mean"),
    "sigmoid cross entropy": lambda x: losses.sigmoid_cross_entropy_loss(LABELS, x, ITEM_WEIGHTS),
    "mean squared": lambda x: losses.mean_squared_loss(LABELS, x, reduction="sum_over_batch_size"),
    "list mle": lambda x: losses.list_mle_loss(LABELS, x, LIST_WEIGHTS, seed=4),
    "p list mle": lambda x: losses.list_mle_loss(
        LABELS, x, lambda_weight=lambda_weights.p_list_mle_lambda_weight(4), seed=4
    ),
    "approx ndcg": lambda x: losses.approx_ndcg_loss(LABELS, x, LIST_WEIGHTS, alpha=2.0),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_true(name: str) -> None:
    x = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(11)).requires_grad_()
    assert torch.autograd.gradcheck(LOSSES[name], (x,))


class EveryLoss(torch.nn.Module):
    """All losses of one batch of lists side by side: one export instead of thirteen."""

    def forward(self, labels: Tensor, logits: Tensor) -> list[Tensor | None]:
        flat = logits[:, 0]
        return [
            losses.sigmoid_loss_and_pred(flat, labels[:, 0].clamp(0, 1), flat.sigmoid(), mask=labels[:, 1])[0],
            losses.softmax_loss_and_pred(logits, labels)[0],
            batch_softmax_loss(logits, labels, flat, flat),
            inbatch_auc_loss(labels[:, 0], flat, 0.5),
            losses.pairwise_hinge_loss(labels, logits),
            losses.pairwise_logistic_loss(labels, logits, flat, lambda_weights.ndcg_lambda_weight()),
            losses.pairwise_soft_zero_one_loss(labels, logits, logits, lambda_weights.PrecisionLambdaWeight(2)),
            losses.softmax_loss(labels, logits, None, lambda_weights.reciprocal_rank_lambda_weight()),
            losses.sigmoid_cross_entropy_loss(labels, logits),
            losses.mean_squared_loss(labels, logits),
            losses.list_mle_loss(labels, logits),
            losses.approx_ndcg_loss(labels, logits),
        ]


def test_all_losses_export_with_a_dynamic_batch() -> None:
    torch.manual_seed(1)

    def inputs(batch: int) -> tuple[Tensor, Tensor]:
        # No two labels of a list are equal: the order of ties is random.
        labels = torch.stack([torch.randperm(5)[:4] - 1.0 for _ in range(batch)])
        return labels, torch.randn(batch, 4)

    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(EveryLoss(), inputs(3), dynamic_shapes=({0: batch}, {0: batch})).module()
    labels, logits = inputs(5)
    torch.testing.assert_close(program(labels, logits), EveryLoss()(labels, logits))


# --- heads ------------------------------------------------------------------------------------------------------------


def head(*args: Any, **kwargs: Any) -> tuple[float, Tensor]:
    loss, pred = losses.sigmoid_loss_and_pred(*args, **kwargs)
    assert loss is not None
    return loss.item(), pred


def test_weights_scale_and_masked_labels_may_be_anything() -> None:
    logits = torch.tensor([0.5, 1.0, -1.0], requires_grad=True)
    label = torch.tensor([1.0, float("nan"), 0.0])
    mask, weight = torch.tensor([True, False, True]), torch.tensor([2.0, 5.0, 3.0])
    loss, _ = losses.sigmoid_loss_and_pred(logits, label, mask=mask, instance_weight=weight)
    assert loss is not None
    expected = 2 * math.log1p(math.exp(-0.5)) + 3 * math.log1p(math.exp(-1.0))
    assert loss.item() == pytest.approx(expected)
    loss.backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[1] == 0


def test_the_prediction_is_of_the_unsampled_world_unless_asked() -> None:
    logits, label = torch.tensor([0.0]), torch.tensor([1.0])
    assert head(logits, label, 0.5)[1].item() == 0.5
    assert head(logits, label, 0.5, predict_before_correction=False)[1].item() == pytest.approx(2 / 3)


def test_without_a_label_there_is_a_prediction_only() -> None:
    assert losses.sigmoid_loss_and_pred(torch.zeros(2), None)[0] is None
    assert losses.softmax_loss_and_pred(torch.zeros(2, 3), None)[0] is None


def test_no_rate_is_rate_one() -> None:
    logits, label = torch.tensor([0.3]), torch.tensor([1.0])
    assert head(logits, label, None)[0] == head(logits, label, 1.0)[0] == head(logits, label)[0]


@pytest.mark.parametrize("threshold", [0.1, 0.9])
def test_clipped_logits_bound_the_loss(threshold: float) -> None:
    loss, pred = head(torch.tensor([100.0]), torch.tensor([0.0]), logit_clip_threshold=threshold)
    assert loss == pytest.approx(math.log1p(9.0))
    assert pred.item() == 1.0


def test_the_softmax_head_is_per_row() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 3.0]])
    loss, pred = losses.softmax_loss_and_pred(logits, torch.eye(3)[[0, 2]])
    torch.testing.assert_close(loss, F.cross_entropy(logits, torch.tensor([0, 2]), reduction="none"))
    assert pred.tolist() == [1, 2]


# --- in-batch ---------------------------------------------------------------------------------------------------------


def test_rows_of_zeros_and_large_scores_stay_finite() -> None:
    query = torch.zeros(2, 3, requires_grad=True)
    batch_softmax_loss(query, torch.ones(2, 3), torch.ones(2), torch.ones(2)).backward()
    assert query.grad is not None
    assert torch.isfinite(query.grad).all()
    loss = batch_softmax_loss(torch.eye(2), torch.eye(2), torch.ones(2), torch.ones(2), temperature=1e-4)
    assert loss.item() == pytest.approx(0.0)


def test_auc_ignores_marked_examples_and_survives_extremes() -> None:
    label = torch.tensor([1.0, 0.0, -10000.0, -5.0])
    logit = torch.tensor([100.0, -100.0, 3.0, 300.0], requires_grad=True)
    value = inbatch_auc_loss(label, logit)
    assert value.item() == -200.0
    value.backward()
    assert logit.grad is not None
    assert logit.grad.tolist() == [1.0, 0.0, 0.0, -1.0]


def test_auc_of_one_class_is_zero() -> None:
    assert inbatch_auc_loss(torch.ones(3), torch.randn(3)).item() == 0.0


# --- ranking ----------------------------------------------------------------------------------------------------------


def plain_pairwise(labels: Tensor, logits: Tensor, weights: Tensor, loss: Callable[[float], float]) -> float:
    total, count = 0.0, 0
    for row in range(labels.shape[0]):
        for i in range(labels.shape[1]):
            for j in range(labels.shape[1]):
                if labels[row, j] >= 0 and labels[row, i] > labels[row, j]:
                    weight = float(weights[row, i] * (labels[row, i] - labels[row, j]))
                    total += weight * loss(float(logits[row, i] - logits[row, j]))
                    count += weight != 0
    return total / count


@pytest.mark.parametrize(
    ("loss_fn", "plain"),
    [
        (losses.pairwise_hinge_loss, lambda d: max(0.0, 1 - d)),
        (losses.pairwise_logistic_loss, lambda d: math.log1p(math.exp(-d))),
        (losses.pairwise_soft_zero_one_loss, lambda d: 1 - 1 / (1 + math.exp(-d))),
    ],
)
def test_pairwise_losses_are_sums_over_pairs(loss_fn: Any, plain: Callable[[float], float], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(-1, 4, (4, 5), generator=generator).double()
    labels[0, :2] = torch.tensor([0.0, 1.0])
    logits = torch.randn(4, 5, dtype=torch.float64, generator=generator)
    weights = torch.randint(0, 3, (4, 5), generator=generator).double()
    weights[0, 1] = 1.0
    assert loss_fn(labels, logits, weights).item() == pytest.approx(plain_pairwise(labels, logits, weights, plain))


# Heads and in-batch losses have no padding.
@pytest.mark.parametrize("name", list(LOSSES)[4:])
def test_scores_of_padding_do_not_matter(name: str) -> None:
    x = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    other = torch.where(LABELS < 0, torch.full_like(x, 50.0), x)
    torch.testing.assert_close(LOSSES[name](other), LOSSES[name](x), rtol=1e-12, atol=1e-12)


def test_no_pairs_give_zero_not_nan() -> None:
    labels, logits = torch.zeros(2, 3), torch.randn(2, 3, requires_grad=True)
    loss = losses.pairwise_logistic_loss(labels, logits)
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad is not None
    assert logits.grad.abs().sum() == 0
    assert losses.softmax_loss(labels, logits).item() == 0.0
    assert losses.approx_ndcg_loss(labels, logits).item() == 0.0
    assert losses.mean_squared_loss(labels - 1, logits, reduction="mean").item() == 0.0


def test_reductions() -> None:
    labels, logits = torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 1.0]])
    weights = torch.tensor([[3.0, 0.0]])
    values = {key: losses.mean_squared_loss(labels, logits, weights, key).item() for key in losses.RankingReduction}
    assert values == {"sum": 12.0, "mean": 4.0, "sum_over_batch_size": 6.0, "sum_by_nonzero_weights": 12.0}


def test_ties_of_list_mle_are_in_a_seeded_order() -> None:
    labels, logits = torch.zeros(1, 6), torch.randn(1, 6, generator=torch.Generator().manual_seed(1))
    first = losses.list_mle_loss(labels, logits, seed=3)
    assert first == losses.list_mle_loss(labels, logits, seed=3)
    assert len({losses.list_mle_loss(labels, logits, seed=s).item() for s in range(8)}) > 1


def test_a_sharp_approx_ndcg_is_the_ndcg() -> None:
    labels, logits = torch.tensor([[3.0, 0.0, 1.0]]), torch.tensor([[1.0, 3.0, 2.0]])
    gain = [7 / math.log(4), 1 / math.log(3)]
    best = 7 / math.log(2) + 1 / math.log(3)
    assert losses.approx_ndcg_loss(labels, logits, alpha=100.0).item() == pytest.approx(-sum(gain) / best, rel=1e-5)


def test_a_dcg_weight_replaces_the_labels_of_softmax() -> None:
    labels, logits = torch.tensor([[1.0, 3.0]]), torch.tensor([[2.0, 1.0]])
    weight = lambda_weights.DCGLambdaWeight()
    worth = torch.tensor([[1 / math.log(2), 7 / math.log(3)]])
    expected = -(worth * torch.log_softmax(logits, 1)).sum()
    torch.testing.assert_close(losses.softmax_loss(labels, logits, lambda_weight=weight), expected)


def test_several_losses_are_added_with_their_weights_and_a_weight_feature() -> None:
    labels, logits = torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 1.0]])
    loss_fn = losses.make_loss_fn(
        ["mean_squared_loss", "approx_ndcg_loss"], [2.0, 10.0], "w", reduction="sum", name="both"
    )
    weights = torch.tensor([[0.5]])
    expected = 2 * 0.5 * 5 + 10 * losses.approx_ndcg_loss(labels, logits, weights).item()
    assert loss_fn(labels, logits, {"w": weights}).item() == pytest.approx(expected)
    assert loss_fn.__name__ == "both"


def test_extra_arguments_reach_the_loss() -> None:
    labels, logits = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.2]])
    loss_fn = losses.make_loss_fn("approx_ndcg_loss", reduction="sum", extra_args={"alpha": 1.0})
    torch.testing.assert_close(loss_fn(labels, logits, {}), losses.approx_ndcg_loss(labels, logits, alpha=1.0))


def test_grouping_pads_lists_and_gradients_find_their_rows() -> None:
    ids = torch.tensor([5, 2, 5, 9, 5])
    labels, scores = torch.tensor([1.0, 0.0, 2.0, 3.0, 0.0]), torch.arange(5.0, requires_grad=True)
    lists, padded = losses.group_by_list(ids, labels, scores)
    assert lists.tolist() == [[1, 2, 0], [0, -1, -1], [3, -1, -1]]
    assert padded.tolist() == [[0, 2, 4], [1, 0, 0], [3, 0, 0]]
    (padded[0] * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert scores.grad is not None
    assert scores.grad.tolist() == [1, 0, 2, 0, 3]
    assert losses.group_by_list(ids[:0], labels[:0])[0].shape == (0, 0)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=20))
def test_grouping_keeps_every_row_in_its_order(ids: list[int]) -> None:
    lists: dict[int, list[float]] = {}
    for row, key in enumerate(ids):
        lists.setdefault(key, []).append(float(row))
    (padded,) = losses.group_by_list(torch.tensor(ids), torch.arange(float(len(ids))))
    longest = max(map(len, lists.values()))
    assert padded.tolist() == [rows + [-1.0] * (longest - len(rows)) for rows in lists.values()]


# --- lambda weights ---------------------------------------------------------------------------------------------------


def test_pairs_beyond_topn_weigh_nothing() -> None:
    labels, ranks = torch.tensor([[3.0, 2.0, 1.0, 0.0]]), torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    weights = lambda_weights.DCGLambdaWeight(topn=2).pair_weights(labels, ranks)[0]
    assert weights[2, 3] == 0
    assert weights[0, 3] > 0
    # Ranks 3 and 4 are both capped at 3.
    d = [1 / math.log(1 + r) for r in (1, 2, 3)]
    assert weights[0, 3].item() == pytest.approx(7 * (d[1] - d[2]))
    assert weights[1, 2].item() == pytest.approx(2 * (d[0] - d[1]))


def test_precision_weighs_pairs_across_the_border() -> None:
    labels, ranks = torch.tensor([[1.0, 0.0, 2.0, -1.0]]), torch.tensor([[3.0, 1.0, 2.0, 4.0]])
    weights = lambda_weights.PrecisionLambdaWeight(2).pair_weights(labels, ranks)[0]
    assert weights.nonzero().tolist() == [[0, 1], [1, 0]]


def test_identity_weighs_all_valid_pairs() -> None:
    labels = torch.tensor([[1.0, -1.0]])
    weights = lambda_weights.IdentityLambdaWeight().pair_weights(labels, torch.tensor([[1.0, 2.0]]))
    assert weights.tolist() == [[[1, 0], [0, 0]]]


ROW = torch.zeros(1, 2)
WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: losses.make_loss_fn("softmx_loss"), "did you mean 'softmax_loss'"),
    (lambda: losses.make_loss_fn([]), "loss_keys is empty"),
    (lambda: losses.make_loss_fn(["softmax_loss"], [1.0, 2.0]), "2 numbers for 1 loss_keys"),
    (lambda: losses.make_loss_fn("softmax_loss", reduction="none"), "reduction is 'none'"),
    (
        lambda: losses.make_loss_fn("softmax_loss", weights_feature_name="w")(ROW, ROW, {}),
        "feature_name is 'w'",
    ),
    (lambda: losses.softmax_loss(torch.zeros(2), torch.zeros(2)), r"labels has shape \(2,\); give \(lists, items\)"),
    (lambda: losses.softmax_loss(ROW, torch.zeros(1, 3)), "make them the same"),
    (lambda: losses.softmax_loss(ROW, ROW, torch.zeros(1, 3)), r"weights have shape \(1, 3\)"),
    (lambda: losses.list_mle_loss(ROW, ROW, ROW), r"takes \(lists,\) or \(lists, 1\)"),
    (lambda: losses.approx_ndcg_loss(ROW, ROW, alpha=0.0), "alpha is 0.0"),
    (lambda: lambda_weights.DCGLambdaWeight(topn=0), "topn is 0"),
    (lambda: lambda_weights.DCGLambdaWeight(smooth_fraction=2.0), "smooth_fraction is 2.0"),
    (lambda: lambda_weights.p_list_mle_lambda_weight(3).pair_weights(ROW, ROW), "no pair weights"),
    (lambda: losses.group_by_list(torch.zeros(2), torch.zeros(3)), "labels has shape"),
    (lambda: losses.sigmoid_loss_and_pred(ROW, torch.zeros(1)), "label has shape"),
    (lambda: losses.sigmoid_loss_and_pred(ROW, ROW, logit_clip_threshold=1.0), "between 0 and 1"),
    (lambda: losses.softmax_loss_and_pred(ROW, torch.zeros(1)), "give one-hot labels"),
    (lambda: batch_softmax_loss(ROW, ROW, ROW, ROW, temperature=0.0), "temperature is 0.0"),
    (lambda: batch_softmax_loss(ROW, torch.zeros(1, 3), ROW, ROW), "they must be the same"),
    (lambda: inbatch_auc_loss(ROW, ROW, 0.0), "neg_weight is 0.0"),
    (lambda: inbatch_auc_loss(ROW, ROW, 1.5), "neg_weight is 1.5"),
    (lambda: inbatch_auc_loss(ROW, torch.zeros(2)), "they must be the same"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_wrong_arguments_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("name", ["mask", "instance_weight"])
def test_a_weight_or_mask_that_would_repeat_the_examples_is_refused(name: str) -> None:
    column, row = torch.zeros(4, 1), torch.tensor([1.0, 2.0, 3.0, 4.0])
    for logits, other in ((column, row), (row, column)):
        with pytest.raises(ConfigError, match=rf"{name} has shape .*, logits .*; make them the same"):
            losses.sigmoid_loss_and_pred(logits, torch.zeros_like(logits), **{name: other})
    per_example = row.unsqueeze(1)
    loss, _ = losses.sigmoid_loss_and_pred(torch.zeros(4, 3), torch.zeros(4, 3), instance_weight=per_example)
    assert loss is not None
    assert loss.item() == pytest.approx(30 * math.log(2.0))


@pytest.mark.parametrize("name", sorted(losses.RankingLossKey))
def test_an_empty_batch_has_the_loss_zero(name: str) -> None:
    labels, scores = losses.group_by_list(torch.zeros(0, dtype=torch.int64), torch.zeros(0), torch.zeros(0))
    for weight in (None, losses.ndcg_lambda_weight()):
        scores.requires_grad_()
        loss = losses.make_loss_fn(name, lambda_weight=weight)(labels, scores, {})
        loss.backward()
        assert loss.item() == 0


def test_a_lambda_weight_of_list_mle_sees_the_labels_in_the_order_of_its_terms() -> None:
    labels, scores, turned = torch.tensor([[0.0, 2.0, 1.0]]), torch.tensor([[1.0, 3.0, 2.0]]), [2, 0, 1]
    weight = losses.ndcg_lambda_weight()
    whole = losses.list_mle_loss(labels, scores, lambda_weight=weight)
    torch.testing.assert_close(losses.list_mle_loss(labels[:, turned], scores[:, turned], lambda_weight=weight), whole)
    discounts = 1 / torch.log1p(torch.tensor([1.0, 2.0]))
    gains = torch.tensor([3.0, 1.0])
    tops = torch.tensor([[3.0, 2.0, 1.0], [2.0, 1.0, -math.inf]])
    terms = torch.logsumexp(tops, 1) - tops[:, 0]
    torch.testing.assert_close(whole, (gains * discounts * terms).sum() / (gains * discounts).sum())


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_padding_of_labels_without_a_sign_is_not_positive(dtype: torch.dtype) -> None:
    (labels,) = losses.group_by_list(torch.tensor([5, 5, 2]), torch.tensor([1, 0, 1], dtype=dtype))
    assert labels.tolist() == [[1, 0], [1, -1]]
