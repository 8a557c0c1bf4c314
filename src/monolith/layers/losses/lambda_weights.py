"""Weights of pairs and items by the value of their order in a ranking metric.

Knows labels and ranks; the losses that use the weights are in :mod:`monolith.layers.losses.ranking`. Labels below 0 are
padding. Ranks start at 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.layers._arguments import check_number, check_whole

__all__ = [
    "DCGLambdaWeight",
    "IdentityLambdaWeight",
    "LambdaWeight",
    "ListMLELambdaWeight",
    "PrecisionLambdaWeight",
    "inverse_max_dcg",
    "ndcg_discount",
    "ndcg_gain",
    "ndcg_lambda_weight",
    "p_list_mle_lambda_weight",
    "reciprocal_rank_lambda_weight",
]

NumberFn = Callable[[Tensor], Tensor]


def ndcg_gain(labels: Tensor) -> Tensor:
    """Return 2^label − 1."""
    return torch.pow(2.0, labels) - 1


def ndcg_discount(ranks: Tensor) -> Tensor:
    """Return 1 / ln(1 + rank)."""
    return 1 / torch.log1p(ranks)


def _label_itself(labels: Tensor) -> Tensor:
    return labels


def _one_over(ranks: Tensor) -> Tensor:
    return 1 / ranks


def inverse_max_dcg(labels: Tensor, gain: NumberFn, discount: NumberFn, topn: int | None = None) -> Tensor:
    """Return 1 / the largest DCG that the labels allow, 0 where that is 0.

    Shapes: ``labels`` (lists, items); the result is (lists, 1).

    >>> inverse_max_dcg(torch.tensor([[0.0, 0.0]]), ndcg_gain, ndcg_discount).tolist()
    [[0.0]]
    """
    ideal = labels.clamp_min(0.0).sort(dim=1, descending=True).values
    ideal = ideal if topn is None else ideal[:, :topn]
    ranks = torch.arange(1, ideal.shape[1] + 1, dtype=labels.dtype, device=labels.device)
    best = (gain(ideal) * discount(ranks)).sum(dim=1, keepdim=True)
    return torch.where(best > 0, 1 / torch.where(best > 0, best, torch.ones_like(best)), torch.zeros_like(best))


class LambdaWeight(ABC):
    """The base: a weight for each pair, and for each item."""

    @abstractmethod
    def pair_weights(self, labels: Tensor, ranks: Tensor) -> Tensor:
        """Return the weight of each pair of items.

        Shapes: ``labels`` and ``ranks`` (lists, items); the result is (lists, items, items).
        """

    def individual_weights(self, labels: Tensor, ranks: Tensor) -> Tensor:
        """Return the weight of each item, (lists, items): its label, unless a subclass knows better."""
        return labels.clamp_min(0.0)


def _both_valid(labels: Tensor) -> Tensor:
    valid = labels >= 0
    return valid.unsqueeze(2) & valid.unsqueeze(1)


@dataclass(frozen=True, slots=True)
class DCGLambdaWeight(LambdaWeight):
    """The change of DCG when two items swap.

    |gain_i − gain_j| · [(1 − sf) · |D(|i−j|) − D(|i−j| + 1)| + sf · |D(i) − D(j)|], sf = ``smooth_fraction``. Ranks are
    capped at topn + 1, and pairs with no rank within topn have weight 0.

    >>> weight = DCGLambdaWeight(normalized=False)
    >>> weight.pair_weights(torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 2.0]])).sum().item()
    0.0
    """

    topn: int | None = None
    """How many ranks count; None for all."""
    gain: NumberFn = ndcg_gain
    """Worth of a label."""
    discount: NumberFn = ndcg_discount
    """D, worth of a rank."""
    normalized: bool = False
    """Whether gains are divided by the largest DCG of the list."""
    smooth_fraction: float = 0.0
    """Share of the absolute ranks in the weight."""

    def __post_init__(self) -> None:
        if self.topn is not None:
            check_whole("DCGLambdaWeight.topn", self.topn)
        check_number("DCGLambdaWeight.smooth_fraction", self.smooth_fraction, at_least=0.0, at_most=1.0)

    def _gains(self, labels: Tensor) -> Tensor:
        gains = self.gain(labels.clamp_min(0.0))
        if self.normalized:
            gains = gains * inverse_max_dcg(labels, self.gain, self.discount, self.topn)
        return gains

    def pair_weights(self, labels: Tensor, ranks: Tensor) -> Tensor:
        """Return the change of DCG of each pair."""
        gains = self._gains(labels)
        gain_change = (gains.unsqueeze(2) - gains.unsqueeze(1)).abs()
        topn = labels.shape[1] if self.topn is None else self.topn
        capped = ranks.clamp_max(topn + 1.0)
        apart = (capped.unsqueeze(2) - capped.unsqueeze(1)).abs()
        safe = apart.clamp_min(1.0)
        relative = (self.discount(safe) - self.discount(safe + 1)).abs()
        relative = torch.where(apart > 0, relative, torch.zeros_like(relative))
        discounts = self.discount(capped)
        absolute = (discounts.unsqueeze(2) - discounts.unsqueeze(1)).abs()
        change = (1 - self.smooth_fraction) * relative + self.smooth_fraction * absolute
        counts = _both_valid(labels) & ((ranks.unsqueeze(2) <= topn) | (ranks.unsqueeze(1) <= topn))
        return torch.where(counts, gain_change * change, torch.zeros_like(change))

    def individual_weights(self, labels: Tensor, ranks: Tensor) -> Tensor:
        """Return gain · D(rank) of each item."""
        return self._gains(labels) * self.discount(ranks) * (labels >= 0)


@dataclass(frozen=True, slots=True)
class PrecisionLambdaWeight(LambdaWeight):
    """The change of precision at ``topn``: 1 where exactly one is positive and exactly one is within topn."""

    topn: int
    """How many ranks count."""
    positive: Callable[[Tensor], Tensor] = lambda labels: labels >= 1
    """Which labels are positive; at least 1 unless given."""

    def __post_init__(self) -> None:
        check_whole("PrecisionLambdaWeight.topn", self.topn)

    def pair_weights(self, labels: Tensor, ranks: Tensor) -> Tensor:
        """Return 1 for the pairs that count."""
        is_positive = self.positive(labels)
        is_within = ranks <= self.topn
        counts = (is_positive.unsqueeze(2) ^ is_positive.unsqueeze(1)) & (
            is_within.unsqueeze(2) ^ is_within.unsqueeze(1)
        )
        return (counts & _both_valid(labels)).to(ranks.dtype)


@dataclass(frozen=True, slots=True)
class IdentityLambdaWeight(LambdaWeight):
    """1 for every pair."""

    def pair_weights(self, labels: Tensor, ranks: Tensor) -> Tensor:
        """Return ones."""
        return _both_valid(labels).to(ranks.dtype)


@dataclass(frozen=True, slots=True)
class ListMLELambdaWeight(LambdaWeight):
    """A weight by position, for ListMLE."""

    rank_weight: NumberFn
    """From ranks to weights."""

    def pair_weights(self, labels: Tensor, ranks: Tensor) -> Tensor:
        """Refuse: positions have weights here, pairs do not."""
        raise ConfigError("ListMLELambdaWeight has no pair weights; use it with list_mle_loss")

    def individual_weights(self, labels: Tensor, ranks: Tensor) -> Tensor:
        """Return the weight of each position."""
        return self.rank_weight(ranks)


def ndcg_lambda_weight(topn: int | None = None, smooth_fraction: float = 0.0) -> DCGLambdaWeight:
    """Return the weight of NDCG: gain 2^label − 1, D(r) = 1 / ln(1 + r), normalised."""
    return DCGLambdaWeight(topn, ndcg_gain, ndcg_discount, True, smooth_fraction)


def reciprocal_rank_lambda_weight(topn: int | None = None, smooth_fraction: float = 0.0) -> DCGLambdaWeight:
    """Return the weight of the reciprocal rank: gain label, D(r) = 1 / r, normalised."""
    return DCGLambdaWeight(topn, _label_itself, _one_over, True, smooth_fraction)


def p_list_mle_lambda_weight(list_size: int) -> ListMLELambdaWeight:
    """Return the weight of p-ListMLE: 2^(list_size − rank) − 1.

    >>> p_list_mle_lambda_weight(3).individual_weights(torch.zeros(1, 3), torch.tensor([[1.0, 2.0, 3.0]])).tolist()
    [[3.0, 1.0, 0.0]]
    """
    size = check_whole("list_size", list_size)
    return ListMLELambdaWeight(lambda ranks: torch.pow(2.0, size - ranks) - 1)
