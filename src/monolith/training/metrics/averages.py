"""Metrics that are one sum over another, in double precision: log loss, calibration, mean squared error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monolith.training.metrics.base import Metric
from monolith.training.metrics.samples import Samples, select_probabilities

__all__ = ["Calibration", "LogLoss", "MeanSquaredError"]

Doubles = NDArray[np.float64]


class _Ratio(Metric):
    """The quotient of two running sums; NaN while the lower one is zero."""

    def __init__(self) -> None:
        self._upper = 0.0
        self._lower = 0.0

    def result(self) -> float:
        """Return the quotient."""
        return self._upper / self._lower if self._lower else math.nan

    def merge(self, other: Self) -> None:
        """Count all that ``other`` has counted."""
        self._upper += other._upper
        self._lower += other._lower

    def reset(self) -> None:
        """Forget everything."""
        self._upper = self._lower = 0.0

    def state(self) -> dict[str, Any]:
        """Return both sums."""
        return {"upper": self._upper, "lower": self._lower}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take both sums over."""
        self._upper, self._lower = float(state["upper"]), float(state["lower"])

    def _count_mean(self, values: Doubles, weight: NDArray[np.float32] | None) -> None:
        self._upper += _sum(values, weight)
        self._lower += values.size if weight is None else float(weight.sum(dtype=np.float64))


class LogLoss(_Ratio):
    """Σ w · −(y ln p + (1 − y) ln(1 − p)) / Σ w, with p kept within [``EPSILON``, 1 − ``EPSILON``].

    NaN when no row was counted.

    >>> loss = LogLoss()
    >>> loss.update([0.5, 0.5], [1, 0])
    >>> round(loss.result(), 6)
    0.693147
    """

    EPSILON = 1e-7
    """No row costs more than −ln(1e-7) ≈ 16.1, however sure and wrong its prediction was."""

    def _select(
        self, predictions: ArrayLike, label: ArrayLike, mask: ArrayLike | None, weight: ArrayLike | None
    ) -> Samples:
        return select_probabilities(predictions, label, mask, weight)

    def add(self, samples: Samples) -> None:
        """Count rows."""
        chances = np.clip(samples.predictions.astype(np.float64), self.EPSILON, 1 - self.EPSILON)
        if samples.are_hard:
            losses = -np.log(np.where(samples.label == 1, chances, 1 - chances))
        else:
            losses = -(samples.label * np.log(chances) + (1.0 - samples.label) * np.log1p(-chances))
        self._count_mean(losses, samples.weight)


class Calibration(_Ratio):
    """Σ w · prediction / Σ w · label: 1 when right on average, above 1 when too much is promised.

    NaN while the labels sum to zero.

    >>> calibration = Calibration()
    >>> calibration.update([0.5, 0.25], [1, 0])
    >>> calibration.result()
    0.75
    """

    def add(self, samples: Samples) -> None:
        """Count rows."""
        self._upper += _sum(samples.predictions, samples.weight)
        self._lower += _sum(samples.label, samples.weight)


class MeanSquaredError(_Ratio):
    """Σ w · (prediction − label)² / Σ w. NaN when no row was counted.

    >>> error = MeanSquaredError()
    >>> error.update([1.0, 3.0], [0.0, 0.0], weight=[1.0, 3.0])
    >>> error.result()
    7.0
    """

    def add(self, samples: Samples) -> None:
        """Count rows."""
        differences = samples.predictions.astype(np.float64) - samples.label
        self._count_mean(differences * differences, samples.weight)


def _sum(values: NDArray[np.floating[Any]], weight: NDArray[np.float32] | None) -> float:
    if weight is None:
        return float(values.sum(dtype=np.float64))
    return float((values.astype(np.float64) * weight).sum())
