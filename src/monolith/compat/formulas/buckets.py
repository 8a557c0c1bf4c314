"""Numeric buckets: the whole numbers that numeric values become before they are hashed into feature ids.

Every function maps a number to an int, or an array to int64 of the same shape. Hash the bucket with
``monolith.fid.from_value(slot, bucket)``.
"""

from __future__ import annotations

from typing import overload

import numpy as np
import numpy.typing as npt

from monolith.core.errors import ConfigError, SchemaMismatch

__all__ = ["log2_bucket", "log_bucket", "ratio_bucket"]

BucketArray = npt.NDArray[np.int64]
# Beyond this a float64 has no fraction, and an int64 is near its end.
_LARGEST = float(1 << 62)


@overload
def log_bucket(values: float, scale: float = 1) -> int: ...
@overload
def log_bucket(values: npt.ArrayLike, scale: float = 1) -> BucketArray: ...
def log_bucket(values: npt.ArrayLike, scale: float = 1) -> int | BucketArray:
    """Return ``floor(scale * ln(1 + value))``: counts and prices, on a scale that widens as they grow.

    Raises:
        SchemaMismatch: A value is negative or not a number.
        ConfigError: ``scale`` is not positive.

    >>> log_bucket(29.0, 10), log_bucket(29.0, 1000), log_bucket([79, 179], 1000).tolist()
    (34, 3401, [4382, 5192])
    """
    if not scale > 0:
        raise ConfigError(f"scale must be positive, got {scale}")
    array = np.asarray(values, np.float64)
    _refuse(array, ~((array >= 0) & (array < np.inf)), "0 or more")
    return _whole(np.floor(scale * np.log1p(array)))


@overload
def ratio_bucket(values: float) -> int: ...
@overload
def ratio_bucket(values: npt.ArrayLike) -> BucketArray: ...
def ratio_bucket(values: npt.ArrayLike) -> int | BucketArray:
    """Return ``floor(100 * value)``: whole per cents of a ratio.

    Raises:
        SchemaMismatch: A value is not a number, or has no bucket.

    >>> ratio_bucket(29.0 / 39.9), ratio_bucket(79 / 179)
    (72, 44)
    """
    array = np.asarray(values, np.float64)
    _refuse(array, ~(np.abs(array) < _LARGEST / 100), "a ratio")
    return _whole(np.floor(100 * array))


@overload
def log2_bucket(values: float) -> int: ...
@overload
def log2_bucket(values: npt.ArrayLike) -> BucketArray: ...
def log2_bucket(values: npt.ArrayLike) -> int | BucketArray:
    """Return ``trunc(log2(|value| + 1))``: the rule for floats of a tf.Example. The sign is lost.

    Raises:
        SchemaMismatch: A value is not a number.

    >>> log2_bucket(0.0), log2_bucket(-7.5), log2_bucket([1.0, 1023.0]).tolist()
    (0, 3, [1, 10])
    """
    array = np.asarray(values, np.float64)
    _refuse(array, ~np.isfinite(array), "a finite number")
    return _whole(np.trunc(np.log2(np.abs(array) + 1)))


def _refuse(array: npt.NDArray[np.float64], wrong: npt.NDArray[np.bool_], wanted: str) -> None:
    if wrong.any():
        at = int(np.argmax(wrong))
        place = "" if array.ndim == 0 else f" (number {at})"
        raise SchemaMismatch(
            f"{array.reshape(-1)[at]}{place} has no bucket: {wanted} is needed; filter or clip it first"
        )


def _whole(buckets: npt.NDArray[np.float64]) -> int | BucketArray:
    whole = np.asarray(buckets).astype(np.int64)
    return int(whole) if whole.ndim == 0 else whole
