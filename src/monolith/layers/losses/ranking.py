"""Learning-to-rank losses over padded lists: labels and scores (lists, items), labels below 0 are padding.

Weights by metric are in :mod:`monolith.layers.losses.lambda_weights`; grouping a flat batch into lists is in
:mod:`monolith.layers.losses.list_grouping`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.layers._arguments import check_choice, check_number, check_rank
from monolith.layers.losses.lambda_weights import (
    DCGLambdaWeight,
    LambdaWeight,
    ListMLELambdaWeight,
    inverse_max_dcg,
    ndcg_discount,
    ndcg_gain,
)

__all__ = [
    "RankingLossFn",
    "RankingLossKey",
    "RankingReduction",
    "approx_ndcg_loss",
    "list_mle_loss",
    "make_loss_fn",
    "mean_squared_loss",
    "pairwise_hinge_loss",
    "pairwise_logistic_loss",
    "pairwise_soft_zero_one_loss",
    "sigmoid_cross_entropy_loss",
    "softmax_loss",
]

RankingLossFn = Callable[[Tensor, Tensor, Mapping[str, Tensor]], Tensor]
"""From labels, logits and the features of a batch to a scalar."""

_PADDED_LOGIT = math.log(1e-10)


class RankingLossKey(enum.StrEnum):
    """The losses that :func:`make_loss_fn` knows."""

    PAIRWISE_HINGE_LOSS = "pairwise_hinge_loss"
    PAIRWISE_LOGISTIC_LOSS = "pairwise_logistic_loss"
    PAIRWISE_SOFT_ZERO_ONE_LOSS = "pairwise_soft_zero_one_loss"
    SOFTMAX_LOSS = "softmax_loss"
    SIGMOID_CROSS_ENTROPY_LOSS = "sigmoid_cross_entropy_loss"
    MEAN_SQUARED_LOSS = "mean_squared_loss"
    LIST_MLE_LOSS = "list_mle_loss"
    APPROX_NDCG_LOSS = "approx_ndcg_loss"


class RankingReduction(enum.StrEnum):
    """How weighted losses become one number."""

    SUM = "sum"
    """Σ w·l."""
    MEAN = "mean"
    """Σ w·l / Σ w."""
    SUM_OVER_BATCH_SIZE = "sum_over_batch_size"
    """Σ w·l / number of losses."""
    SUM_BY_NONZERO_WEIGHTS = "sum_by_nonzero_weights"
    """Σ w·l / number of weights that are not 0."""


_BY_NONZERO = RankingReduction.SUM_BY_NONZERO_WEIGHTS


def _reduce(losses: Tensor, weights: Tensor, reduction: str) -> Tensor:
    check_choice("reduction", reduction, [str(member) for member in RankingReduction])
    # A loss of weight 0 may be infinite where there is padding; it must not turn the sum into NaN.
    total = (torch.where(weights != 0, losses, torch.zeros_like(losses)) * weights).sum()
    if reduction == RankingReduction.SUM:
        return total
    if reduction == RankingReduction.SUM_OVER_BATCH_SIZE:
        return total / max(1, losses.numel())
    parts = weights.sum() if reduction == RankingReduction.MEAN else (weights != 0).sum().to(total.dtype)
    return torch.where(
        parts != 0, total / torch.where(parts != 0, parts, torch.ones_like(parts)), torch.zeros_like(total)
    )


def _check(labels: Tensor, logits: Tensor) -> None:
    check_rank("labels", labels, 2, "(lists, items)")
    if labels.shape != logits.shape:
        raise ConfigError(f"labels have shape {tuple(labels.shape)}, logits {tuple(logits.shape)}; make them the same")


def _item_weights(weights: Tensor | None, like: Tensor) -> Tensor:
    if weights is None:
        return torch.ones_like(like)
    if weights.dim() == 1:
        weights = weights.unsqueeze(1)
    if weights.dim() != 2 or weights.shape[1] not in (1, like.shape[1]):
        raise ConfigError(
            f"weights have shape {tuple(weights.shape)}; give (lists,), (lists, 1) or {tuple(like.shape)}"
        )
    return weights.to(like.dtype).expand_as(like)


def _list_weights(weights: Tensor | None, like: Tensor) -> Tensor:
    if weights is None:
        return like.new_ones(like.shape[0])
    flat = weights.squeeze(1) if weights.dim() == 2 and weights.shape[1] == 1 else weights
    if flat.dim() != 1:
        raise ConfigError(
            f"weights have shape {tuple(weights.shape)}; a loss of whole lists takes (lists,) or (lists, 1)"
        )
    return flat.to(like.dtype)


def _lowest(scores: Tensor) -> Tensor:
    """Return the smallest score of each list, (lists, 1); 0 where lists have no items."""
    return scores.amin(dim=1, keepdim=True) if scores.shape[1] else scores.new_zeros(scores.shape[0], 1)


def _ranks(labels: Tensor, logits: Tensor) -> Tensor:
    """Return the rank of each item by score, from 1; padding comes last."""
    scores = logits.detach()
    padded = torch.where(labels >= 0, scores, _lowest(scores) - 1e-6)
    # Padding last even where the subtraction is lost to rounding.
    order = torch.argsort(padded, dim=1, descending=True, stable=True)
    order = order.gather(1, torch.argsort((labels < 0).to(torch.int8).gather(1, order), dim=1, stable=True))
    ranks = torch.arange(1, labels.shape[1] + 1, dtype=logits.dtype, device=logits.device)
    return torch.zeros_like(logits).scatter(1, order, ranks.expand_as(logits))


def _pairwise(
    pair_loss: Callable[[Tensor], Tensor],
    labels: Tensor,
    logits: Tensor,
    weights: Tensor | None,
    lambda_weight: LambdaWeight | None,
    reduction: str,
) -> Tensor:
    _check(labels, logits)
    labels = labels.to(logits.dtype)
    valid = labels >= 0
    is_pair = (labels.unsqueeze(2) > labels.unsqueeze(1)) & valid.unsqueeze(2) & valid.unsqueeze(1)
    if lambda_weight is None:
        worth = (labels.unsqueeze(2) - labels.unsqueeze(1)).abs()
    else:
        worth = lambda_weight.pair_weights(labels, _ranks(labels, logits)) * labels.shape[1]
    pair_weights = (_item_weights(weights, logits).unsqueeze(2) * worth).detach()
    pair_weights = torch.where(is_pair, pair_weights, torch.zeros_like(pair_weights))
    return _reduce(pair_loss(logits.unsqueeze(2) - logits.unsqueeze(1)), pair_weights, reduction)


def pairwise_hinge_loss(
    labels: Tensor,
    logits: Tensor,
    weights: Tensor | None = None,
    lambda_weight: LambdaWeight | None = None,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """Reduce max(0, 1 − (s_i − s_j)) over pairs with label_i > label_j.

    A pair weighs w_i · |label_i − label_j|, or w_i · lambda weight · items. Shapes: ``labels`` and ``logits``
    (lists, items); ``weights`` the same, (lists, 1) or (lists,); the result is a scalar.

    >>> pairwise_hinge_loss(torch.tensor([[0.0, 1.0]]), torch.tensor([[2.0, 1.0]])).item()
    2.0
    """
    return _pairwise(lambda d: F.relu(1 - d), labels, logits, weights, lambda_weight, reduction)


def pairwise_logistic_loss(
    labels: Tensor,
    logits: Tensor,
    weights: Tensor | None = None,
    lambda_weight: LambdaWeight | None = None,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """Reduce ln(1 + e^−(s_i − s_j)) over pairs with label_i > label_j; weights as in :func:`pairwise_hinge_loss`.

    >>> round(pairwise_logistic_loss(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 1.0]])).item(), 4)
    0.6931
    """
    return _pairwise(lambda d: -F.logsigmoid(d), labels, logits, weights, lambda_weight, reduction)


def pairwise_soft_zero_one_loss(
    labels: Tensor,
    logits: Tensor,
    weights: Tensor | None = None,
    lambda_weight: LambdaWeight | None = None,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """Reduce 1 − sigmoid(s_i − s_j) over pairs with label_i > label_j; weights as in :func:`pairwise_hinge_loss`.

    >>> pairwise_soft_zero_one_loss(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 1.0]])).item()
    0.5
    """
    return _pairwise(lambda d: torch.sigmoid(-d), labels, logits, weights, lambda_weight, reduction)


def softmax_loss(
    labels: Tensor,
    logits: Tensor,
    weights: Tensor | None = None,
    lambda_weight: LambdaWeight | None = None,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """Reduce the cross entropy of each list's label distribution and softmax, weighted by the list's label sum.

    The distribution is label · weight / Σ; a list whose sum is 0 is dropped. A DCG lambda weight replaces the labels by
    the worth of each item at its rank. Shapes as in :func:`pairwise_hinge_loss`.

    >>> round(softmax_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0]])).item(), 4)
    0.6931
    """
    _check(labels, logits)
    labels = labels.to(logits.dtype)
    valid = labels >= 0
    if isinstance(lambda_weight, DCGLambdaWeight):
        worth = lambda_weight.individual_weights(labels, _ranks(labels, logits))
    else:
        worth = labels
    worth = torch.where(valid, worth * _item_weights(weights, logits), torch.zeros_like(labels)).detach()
    total = worth.sum(dim=1, keepdim=True)
    share = worth / torch.where(total > 0, total, torch.ones_like(total))
    scores = torch.where(valid, logits, torch.full_like(logits, _PADDED_LOGIT))
    losses = -(share * torch.log_softmax(scores, dim=1)).sum(dim=1)
    return _reduce(losses, total.squeeze(1).clamp_min(0.0), reduction)


def sigmoid_cross_entropy_loss(
    labels: Tensor, logits: Tensor, weights: Tensor | None = None, reduction: str = _BY_NONZERO
) -> Tensor:
    """Reduce the sigmoid cross entropy of each valid item. Shapes as in :func:`pairwise_hinge_loss`.

    >>> round(sigmoid_cross_entropy_loss(torch.tensor([[1.0, -1.0]]), torch.tensor([[0.0, 9.0]])).item(), 4)
    0.6931
    """
    return _pointwise(
        lambda label, logit: F.binary_cross_entropy_with_logits(logit, label, reduction="none"),
        labels,
        logits,
        weights,
        reduction,
    )


def mean_squared_loss(
    labels: Tensor, logits: Tensor, weights: Tensor | None = None, reduction: str = _BY_NONZERO
) -> Tensor:
    """Reduce (s − label)² of each valid item. Shapes as in :func:`pairwise_hinge_loss`.

    >>> mean_squared_loss(torch.tensor([[1.0, -1.0]]), torch.tensor([[3.0, 9.0]])).item()
    4.0
    """
    return _pointwise(lambda label, logit: (logit - label).square(), labels, logits, weights, reduction)


def _pointwise(
    item_loss: Callable[[Tensor, Tensor], Tensor],
    labels: Tensor,
    logits: Tensor,
    weights: Tensor | None,
    reduction: str,
) -> Tensor:
    _check(labels, logits)
    labels = labels.to(logits.dtype)
    valid = labels >= 0
    clean = torch.where(valid, labels, torch.zeros_like(labels))
    scores = torch.where(valid, logits, torch.zeros_like(logits))
    return _reduce(item_loss(clean, scores), _item_weights(weights, logits) * valid, reduction)


def list_mle_loss(
    labels: Tensor,
    logits: Tensor,
    weights: Tensor | None = None,
    lambda_weight: ListMLELambdaWeight | None = None,
    reduction: str = _BY_NONZERO,
    seed: int | None = None,
) -> Tensor:
    """Reduce, per list, Σ_k [ln Σ_{m ≥ k} e^{t_m} − t_k] with t the scores in the order of falling labels.

    Equal labels are in random order, the same at each call if there is a ``seed``. A lambda weight multiplies the term
    of each position. Shapes: ``labels`` and ``logits`` (lists, items), ``weights`` (lists,) or (lists, 1).

    >>> round(list_mle_loss(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 0.0]])).item(), 4)
    0.6931
    """
    _check(labels, logits)
    shuffle = _random_order(logits, seed)
    order = shuffle.gather(1, torch.argsort(labels.gather(1, shuffle), dim=1, descending=True, stable=True))
    valid = labels.gather(1, order) >= 0
    # Far below any score, yet finite: padding adds nothing to the sums and no NaN to the gradients.
    scores = torch.where(valid, logits.gather(1, order), torch.full_like(logits, torch.finfo(logits.dtype).min / 4))
    tails = torch.logcumsumexp(scores.flip(1), dim=1).flip(1)
    terms = torch.where(valid, tails - scores, torch.zeros_like(scores))
    if lambda_weight is not None:
        ranks = torch.arange(1, labels.shape[1] + 1, dtype=logits.dtype, device=logits.device).expand_as(logits)
        terms = terms * lambda_weight.individual_weights(labels.gather(1, order).to(logits.dtype), ranks)
    return _reduce(terms.sum(dim=1), _list_weights(weights, logits), reduction)


def _random_order(like: Tensor, seed: int | None) -> Tensor:
    if seed is None:
        return torch.rand_like(like).argsort(dim=1)
    generator = torch.Generator(device=like.device).manual_seed(seed)
    return torch.rand(like.shape, generator=generator, device=like.device).argsort(dim=1)


def approx_ndcg_loss(
    labels: Tensor,
    logits: Tensor,
    weights: Tensor | None = None,
    reduction: str = RankingReduction.SUM,
    alpha: float = 10.0,
) -> Tensor:
    """Reduce the negated NDCG of each list under smooth ranks: rank_i = ½ + Σ_j sigmoid(alpha · (s_j − s_i)).

    Lists whose labels sum to 0 are dropped. Shapes: ``labels`` and ``logits`` (lists, items), ``weights`` (lists,) or
    (lists, 1).

    >>> round(approx_ndcg_loss(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 5.0]])).item(), 4)
    -1.0
    """
    check_number("alpha", alpha, above=0.0)
    _check(labels, logits)
    labels = labels.to(logits.dtype)
    valid = labels >= 0
    clean = torch.where(valid, labels, torch.zeros_like(labels))
    scores = torch.where(valid, logits, (_lowest(logits.detach()) - 1000.0).expand_as(logits))
    ranks = 0.5 + torch.sigmoid(alpha * (scores.unsqueeze(1) - scores.unsqueeze(2))).sum(dim=2)
    best = inverse_max_dcg(clean, ndcg_gain, ndcg_discount).squeeze(1)
    losses = -(ndcg_gain(clean) * ndcg_discount(ranks)).sum(dim=1) * best
    has_gain = (clean.sum(dim=1) > 0).to(logits.dtype)
    return _reduce(losses, _list_weights(weights, logits) * has_gain, reduction)


_LOSSES: Mapping[str, Callable[..., Tensor]] = {
    RankingLossKey.PAIRWISE_HINGE_LOSS: pairwise_hinge_loss,
    RankingLossKey.PAIRWISE_LOGISTIC_LOSS: pairwise_logistic_loss,
    RankingLossKey.PAIRWISE_SOFT_ZERO_ONE_LOSS: pairwise_soft_zero_one_loss,
    RankingLossKey.SOFTMAX_LOSS: softmax_loss,
    RankingLossKey.SIGMOID_CROSS_ENTROPY_LOSS: sigmoid_cross_entropy_loss,
    RankingLossKey.MEAN_SQUARED_LOSS: mean_squared_loss,
    RankingLossKey.LIST_MLE_LOSS: list_mle_loss,
    RankingLossKey.APPROX_NDCG_LOSS: approx_ndcg_loss,
}
_WITH_LAMBDA = {key for key in _LOSSES if key.startswith("pairwise") or key in ("softmax_loss", "list_mle_loss")}


def make_loss_fn(
    loss_keys: str | Sequence[str],
    loss_weights: Sequence[float] | None = None,
    weights_feature_name: str | None = None,
    lambda_weight: LambdaWeight | None = None,
    reduction: str = _BY_NONZERO,
    name: str | None = None,
    seed: int | None = None,
    extra_args: Mapping[str, Any] | None = None,
) -> RankingLossFn:
    """Return f(labels, logits, features): the weighted sum of the named losses.

    Args:
        loss_keys: One key of :class:`RankingLossKey`, or several.
        loss_weights: Weight of each; None is 1.
        weights_feature_name: Which feature holds the weights of the items or lists; None for no weights.
        lambda_weight: Weights by metric, for the losses that take them.
        reduction: How each loss is reduced.
        name: The name of the function that is returned.
        seed: Of the random order of ties in ListMLE.
        extra_args: Further arguments, such as ``alpha`` of ApproxNDCG.

    Raises:
        ConfigError: A key or the reduction is unknown, or the lists differ in length.

    >>> loss_fn = make_loss_fn(["mean_squared_loss", "softmax_loss"], [0.5, 1.0])
    >>> round(loss_fn(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0]]), {}).item(), 4)
    0.9431
    """
    keys = [loss_keys] if isinstance(loss_keys, str) else list(loss_keys)
    if not keys:
        raise ConfigError("loss_keys is empty; give at least one key of RankingLossKey")
    keys = [check_choice("loss_keys", str(key), [str(known) for known in _LOSSES]) for key in keys]
    scales = [1.0] * len(keys) if loss_weights is None else list(loss_weights)
    if len(scales) != len(keys):
        raise ConfigError(f"loss_weights has {len(scales)} numbers for {len(keys)} loss_keys; give one each")
    check_choice("reduction", reduction, [str(member) for member in RankingReduction])

    def settings_of(key: str) -> dict[str, Any]:
        settings: dict[str, Any] = {"reduction": reduction} | dict(extra_args or {})
        if lambda_weight is not None and key in _WITH_LAMBDA:
            settings["lambda_weight"] = lambda_weight
        if key == RankingLossKey.LIST_MLE_LOSS:
            settings["seed"] = seed
        return settings

    parts = [(scale, _LOSSES[key], settings_of(key)) for scale, key in zip(scales, keys, strict=True)]

    def loss_fn(labels: Tensor, logits: Tensor, features: Mapping[str, Tensor]) -> Tensor:
        weights = None
        if weights_feature_name is not None:
            if weights_feature_name not in features:
                raise ConfigError(f"weights_feature_name is {weights_feature_name!r}, expected the name of a feature")
            weights = features[weights_feature_name]
        losses = [scale * loss(labels, logits, weights, **settings) for scale, loss, settings in parts]
        return torch.stack(losses).sum()

    loss_fn.__name__ = name or "_and_".join(keys)
    return loss_fn
