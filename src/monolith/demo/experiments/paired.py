"""Paired comparison of several scores of the same rows: AUC, and a bootstrap interval of each difference."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from monolith.core.errors import DataError

__all__ = ["Floats", "difference_intervals", "weighted_auc"]

Floats = NDArray[np.float64]


def weighted_auc(scores: Floats, label: NDArray[np.bool_], weight: Floats) -> float:
    """Return the AUC of rows that count ``weight`` times; ties count half.

    >>> weighted_auc(np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, False, True, True]), np.ones(4))
    0.875
    """
    return _Ranking(scores, label).auc(weight)


class _Ranking:
    """Rows sorted once by score, for many AUCs with other weights."""

    def __init__(self, scores: Floats, label: NDArray[np.bool_]) -> None:
        self._order = scores.argsort(kind="stable")
        self._positive = label[self._order]
        values = scores[self._order]
        self._starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])

    def auc(self, weight: Floats) -> float:
        sorted_weight = weight[self._order]
        positive = np.add.reduceat(np.where(self._positive, sorted_weight, 0.0), self._starts)
        negative = np.add.reduceat(np.where(self._positive, 0.0, sorted_weight), self._starts)
        below = np.cumsum(negative) - negative
        pairs = positive.sum() * negative.sum()
        if not pairs:
            raise DataError("all labels are equal, expected both kinds for an AUC; take more rows")
        return float((positive * (below + negative / 2)).sum() / pairs)


def difference_intervals(
    scores: Mapping[float, Floats],
    label: NDArray[np.bool_],
    block: NDArray[np.int64],
    *,
    resamples: int = 100,
    seed: int = 0,
) -> dict[float, tuple[float, float, float]]:
    """Return the AUC of each score, and the 95 % interval of its difference to the first score.

    Whole blocks of rows are resampled, because rows of one moment are alike. All scores get the same resamples.

    Args:
        scores: Scores by name; the first is the reference.
        label: Label of each row.
        block: Block number of each row, such as its minute.
        resamples: Resamples of the bootstrap.
        seed: Seed of the resamples.
    """
    rankings = {name: _Ranking(values, label) for name, values in scores.items()}
    _, place = np.unique(block, return_inverse=True)
    blocks = int(place.max()) + 1
    rng = np.random.default_rng(seed)
    draws = [np.bincount(rng.integers(0, blocks, blocks), minlength=blocks)[place] for _ in range(resamples)]
    sampled = {name: np.array([ranking.auc(w.astype(np.float64)) for w in draws]) for name, ranking in rankings.items()}
    reference = sampled[next(iter(scores))]
    ones = np.ones(len(label))
    found = {}
    for name, ranking in rankings.items():
        low, high = np.quantile(sampled[name] - reference, [0.025, 0.975])
        found[name] = (ranking.auc(ones), float(low), float(high))
    return found
