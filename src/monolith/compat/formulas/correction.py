"""Log-odds correction for sampled data: training corrects the logits, and prediction uses them uncorrected.

When only a share r of the negatives is kept, the odds in the data are 1/r of the true ones. Training on
``logit - ln(r)`` leaves the logit unbiased.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from monolith.core.errors import ConfigError

__all__ = ["clip_logits", "correct_logits", "logit_bound"]

_Floats: TypeAlias = npt.NDArray[np.floating[Any]]


def correct_logits(logits: npt.ArrayLike, sample_rate: npt.ArrayLike | None, *, sample_bias: bool = False) -> _Floats:
    """Return the logits to train on: ``logit - ln(sample_rate)``.

    Shapes: ``logits`` is any; ``sample_rate`` is a number or broadcasts to it. float32 stays float32.

    Args:
        logits: The model's logits.
        sample_rate: The share of negatives that was kept, of each row; None: 1.
        sample_bias: For "fast emit", where a negative is emitted immediately and a later positive corrects it. The
            first term is ``ln(sigmoid(logit))`` instead of the logit.

    Raises:
        ConfigError: A rate is not above 0, or not a number.

    >>> correct_logits([0.0], 0.5).round(4).tolist()
    [0.6931]
    """
    values = _floats(logits)
    corrected: _Floats = -np.logaddexp(values.dtype.type(0), -values) if sample_bias else values
    if sample_rate is None:
        return corrected.copy() if corrected is values else corrected
    rates: _Floats = np.asarray(sample_rate, values.dtype)
    if not np.all(rates > 0):
        worst = rates[~(rates > 0)].flat[0]
        raise ConfigError(f"sample_rate has {worst}; rates are above 0, a row that is always kept has 1")
    result: _Floats = corrected - np.log(rates)
    return result


def logit_bound(smallest_probability: float) -> float:
    """Return ln((1 - c) / c): how far from 0 a logit may be so that its probability is in [c, 1 - c].

    Raises:
        ConfigError: ``smallest_probability`` is not between 0 and 1.
    """
    if not 0 < smallest_probability < 1:
        raise ConfigError(f"smallest_probability is {smallest_probability}; give a number between 0 and 1")
    return math.log((1 - smallest_probability) / smallest_probability)


def clip_logits(logits: npt.ArrayLike, smallest_probability: float) -> _Floats:
    """Return the logits cut off at ± ``logit_bound(smallest_probability)``.

    For a probability above 0.5 the bound is negative, and its size counts.
    """
    bound = abs(logit_bound(smallest_probability))
    result: _Floats = np.clip(_floats(logits), -bound, bound)
    return result


def _floats(values: npt.ArrayLike) -> _Floats:
    array = np.asarray(values)
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)
