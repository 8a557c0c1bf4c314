from __future__ import annotations

import numpy as np
import pytest

from monolith.compat.formulas.buckets import log2_bucket, log_bucket, ratio_bucket
from monolith.core.errors import ConfigError, SchemaMismatch


def test_arrays_keep_their_shape_and_agree_with_single_values() -> None:
    values = np.array([[0.0, 1.5], [1e6, 1e-9]])
    buckets = log_bucket(values, 10)
    assert (buckets.shape, buckets.dtype) == ((2, 2), np.dtype(np.int64))
    assert buckets.tolist() == [[log_bucket(float(one), 10) for one in row] for row in values]
    assert log_bucket(np.array([], np.float32)).tolist() == []
    assert isinstance(log_bucket(3), int)
    assert isinstance(ratio_bucket(np.float32(0.5)), int)


def test_ratios_and_signs() -> None:
    assert ratio_bucket([0, 0.999, 1, -0.001]).tolist() == [0, 99, 100, -1]
    assert log2_bucket([0, 0.9, -1, 3, -1e300]).tolist() == [0, 0, 1, 2, 996]


@pytest.mark.parametrize("value", [-0.5, float("nan"), float("inf")])
def test_values_without_a_bucket_are_named(value: float) -> None:
    with pytest.raises(SchemaMismatch, match=rf"{value} \(number 1\) has no bucket"):
        log_bucket([1.0, value])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_a_number_has_no_bucket(value: float) -> None:
    for rule in (ratio_bucket, log2_bucket):
        with pytest.raises(SchemaMismatch, match=f"^{value} has no bucket"):
            rule(value)
    with pytest.raises(ConfigError, match="scale"):
        log_bucket(1.0, 0)
