"""``StreamingAuc``: the area under the ROC curve of a stream, exact at first and with a stated error after that.

The area is the share of pairs of a positive and a negative row that the predictions put in the right order; equal
predictions count half. Both ways to compute it reduce the rows to groups of equal (or nearly equal) predictions, in
rising order, with the weight of positives and of negatives in each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monolith.core.errors import ConfigError
from monolith.training.metrics.array_text import array_of, text_of
from monolith.training.metrics.base import Metric
from monolith.training.metrics.samples import Samples, select_probabilities

__all__ = ["StreamingAuc"]

Keys = NDArray[np.uint32]
"""One entry each: the bits of the prediction, then 1 when positive. A float between 0 and 1 leaves a bit free, and
such floats are ordered like their bits."""
Doubles = NDArray[np.float64]
Groups = tuple[Doubles, Doubles]
"""Weight of positives and of negatives, by group of predictions in rising order."""

_MANTISSA_BITS = 23
_OCTAVE_BITS = 6
# The smallest octave that the histogram tells apart begins at 2 ** -33; it holds everything below, too.
_FIRST_EXPONENT = 127 - 33


class StreamingAuc(Metric):
    """AUC with weights and ties: exact for ``exact_size`` rows, then from a histogram in bounded memory.

    The histogram has a fixed number of bins whose width is proportional to p below 1/2 and to 1 − p above it, so that
    rare events are separated as well as common ones. Pairs within a bin count half, hence the true area is within
    ``error_bound()`` of ``result()``: half the share of such pairs. With 2**17 bins, neighbouring bins differ by
    0.05 % in p, and the bound is typically below 1e-4.

    A label between 0 and 1 counts as that much of a positive row and the rest of a negative one (and as two rows
    towards ``exact_size``). The value is NaN until there is weight on both sides.

    Args:
        exact_size: Rows up to which all are kept, at 4 bytes each, or 12 with weights.
        bins: Bins of the histogram, 16 bytes each: a power of two between 2**7 and 2**24.

    >>> auc = StreamingAuc()
    >>> auc.update([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    >>> auc.result(), auc.error_bound()
    (0.75, 0.0)
    """

    def __init__(self, exact_size: int = 1_000_000, bins: int = 1 << 17) -> None:
        if exact_size < 0:
            raise ConfigError(f"exact_size must not be negative, got {exact_size}")
        if not (1 << 7) <= bins <= (1 << 24) or bins & (bins - 1):
            raise ConfigError(f"bins must be a power of two between 2**7 and 2**24, got {bins}")
        self._exact_size = exact_size
        self._bins = bins
        self._rows = _Rows()
        self._histogram: Groups | None = None

    @property
    def is_exact(self) -> bool:
        """Whether every row is still kept."""
        return self._histogram is None

    def _select(
        self, predictions: ArrayLike, label: ArrayLike, mask: ArrayLike | None, weight: ArrayLike | None
    ) -> Samples:
        return select_probabilities(predictions, label, mask, weight)

    def add(self, samples: Samples) -> None:
        """Count rows; their order is worked out when the result is asked for."""
        self._take(*_entries(samples))

    def result(self) -> float:
        """Return the area, NaN when there are no pairs."""
        positive, negative = self._groups()
        pairs = float(positive.sum() * negative.sum())
        if not pairs:
            return math.nan
        below = np.concatenate([[0.0], np.cumsum(negative)[:-1]])
        return float(positive @ (below + negative / 2)) / pairs

    def error_bound(self) -> float:
        """Return how far the true area may be from ``result()`` at most; 0 while it is exact."""
        if self._histogram is None:
            return 0.0
        positive, negative = self._histogram
        pairs = float(positive.sum() * negative.sum())
        return float(positive @ negative) / 2 / pairs if pairs else 0.0

    def merge(self, other: Self) -> None:
        """Count all that ``other`` has counted.

        Raises:
            ConfigError: ``other`` has another number of bins.
        """
        self._check_bins(other._bins)
        if other._histogram is None:
            self._take(other._rows.keys, other._rows.weights)
            return
        mine = self._as_histogram()
        for own, theirs in zip(mine, other._histogram, strict=True):
            own += theirs

    def reset(self) -> None:
        """Forget everything; exact again."""
        self._rows = _Rows()
        self._histogram = None

    def state(self) -> dict[str, Any]:
        """Return all rows, or the bins that are not empty."""
        state: dict[str, Any] = {"bins": self._bins}
        if self._histogram is None:
            state["keys"] = text_of(self._rows.keys)
            if self._rows.weights is not None:
                state["weights"] = text_of(self._rows.weights)
            return state
        positive, negative = self._histogram
        used = np.flatnonzero((positive != 0) | (negative != 0))
        state["used"] = text_of(used.astype(np.int32))
        state["positive"], state["negative"] = text_of(positive[used]), text_of(negative[used])
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace everything by a saved state.

        Raises:
            ConfigError: It was saved with another number of bins.
        """
        self._check_bins(int(state["bins"]))
        self.reset()
        if "keys" in state:
            self._take(array_of(state["keys"]), array_of(state["weights"]) if "weights" in state else None)
            return
        used = array_of(state["used"])
        for bins, name in zip(self._as_histogram(), ("positive", "negative"), strict=True):
            bins[used] = array_of(state[name])

    def _check_bins(self, bins: int) -> None:
        if bins != self._bins:
            raise ConfigError(f"an AUC of {bins} bins cannot be taken into one of {self._bins}; use the same number")

    def _take(self, keys: Keys, weights: Doubles | None) -> None:
        if self._histogram is None and len(self._rows.keys) + len(keys) <= self._exact_size:
            self._rows.append(keys, weights, self._exact_size)
        else:
            _pour(keys, weights, self._as_histogram())

    def _as_histogram(self) -> Groups:
        if self._histogram is None:
            self._histogram = np.zeros(self._bins), np.zeros(self._bins)
            _pour(self._rows.keys, self._rows.weights, self._histogram)
            self._rows = _Rows()
        return self._histogram

    def _groups(self) -> Groups:
        return self._histogram or _equal_groups(self._rows.keys, self._rows.weights)


class _Rows:
    """Entries in arrays that grow by doubling; weights only when one is not 1."""

    def __init__(self) -> None:
        self._size = 0
        self._keys: Keys = np.empty(0, np.uint32)
        self._weights: Doubles | None = None

    @property
    def keys(self) -> Keys:
        return self._keys[: self._size]

    @property
    def weights(self) -> Doubles | None:
        return None if self._weights is None else self._weights[: self._size]

    def append(self, keys: Keys, weights: Doubles | None, most: int) -> None:
        begin, end = self._size, self._size + len(keys)
        if weights is not None and self._weights is None:
            self._weights = np.ones(len(self._keys))
        if end > len(self._keys):
            room = max(end, min(max(2 * len(self._keys), 4096), most))
            self._keys = _grown(self._keys, room)
            self._weights = None if self._weights is None else _grown(self._weights, room)
        self._keys[begin:end] = keys
        if self._weights is not None:
            self._weights[begin:end] = 1.0 if weights is None else weights
        self._size = end


def _grown(array: NDArray[Any], room: int) -> NDArray[Any]:
    larger = np.empty(room, array.dtype)
    larger[: len(array)] = array
    return larger


def _entries(samples: Samples) -> tuple[Keys, Doubles | None]:
    bits = np.ascontiguousarray(samples.predictions).view(np.uint32) << np.uint32(1)  # the sign of -0.0 falls off
    weights = None if samples.weight is None else samples.weight.astype(np.float64)
    if samples.are_hard:
        return bits | (samples.label == 1), weights
    shares = np.concatenate([samples.label.astype(np.float64), 1.0 - samples.label.astype(np.float64)])
    weights = shares if weights is None else shares * np.tile(weights, 2)
    return np.concatenate([bits | np.uint32(1), bits]), weights


def _equal_groups(keys: Keys, weights: Doubles | None) -> Groups:
    if not len(keys):
        return np.zeros(0), np.zeros(0)
    if weights is None:
        keys = np.sort(keys)
    else:
        order = np.argsort(keys, kind="stable")
        keys, weights = keys[order], weights[order]
    predictions = keys >> np.uint32(1)
    begins = np.concatenate([[0], np.flatnonzero(predictions[1:] != predictions[:-1]) + 1])
    is_positive = (keys & np.uint32(1)).astype(np.float64)
    each = np.ones(len(keys)) if weights is None else weights
    positive = np.add.reduceat(is_positive * each, begins)
    return positive, np.add.reduceat((1 - is_positive) * each, begins)


def _pour(keys: Keys, weights: Doubles | None, groups: Groups) -> None:
    bins = len(groups[0])
    places = _bins_of((keys >> np.uint32(1)).view(np.float32), bins)
    each = np.ones(len(keys)) if weights is None else weights
    is_positive = (keys & np.uint32(1)).astype(np.bool_)
    for group, chosen in zip(groups, (is_positive, ~is_positive), strict=True):
        np.add.at(group, places[chosen], each[chosen])


def _bins_of(predictions: NDArray[np.float32], bins: int) -> NDArray[np.int64]:
    """Number the bins by the leading bits of p, mirrored above 1/2, where 1 − p is exact."""
    fraction_bits = bins.bit_length() - 1 - _OCTAVE_BITS
    is_upper = predictions >= 0.5
    small = np.where(is_upper, np.float32(1) - predictions, predictions)
    place = (small.view(np.uint32) >> np.uint32(_MANTISSA_BITS - fraction_bits)).astype(np.int64)
    place = np.clip(place - (_FIRST_EXPONENT << fraction_bits), 0, bins // 2 - 1)
    return np.where(is_upper, bins - 1 - place, place)
