"""``Batch.from_arrays`` follows the rules of records for missing labels."""

from __future__ import annotations

import numpy as np
import pytest

from monolith.core.errors import ConfigError
from monolith.data import Batch
from monolith.data.transforms import INVALID_LABEL


def test_labels_that_are_nan_or_the_lowest_float_are_missing() -> None:
    batch = Batch.from_arrays(ids={"a": [[1], [2], [3]]}, label=[1.0, np.nan, INVALID_LABEL])
    assert batch.label.tolist() == [[1.0], [0.0], [0.0]]
    assert batch.label_mask.tolist() == [[True], [False], [False]]


def test_a_flat_mask_gets_the_shape_of_the_labels() -> None:
    batch = Batch.from_arrays(ids={"a": [[1], [2]]}, label=[1, 1], label_mask=[True, False])
    assert batch.label.tolist() == [[1.0], [1.0]]
    assert batch.label_mask.tolist() == [[True], [False]]


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"label_mask has shape \(1, 1\), expected \(2, 1\)"):
        Batch.from_arrays(ids={"a": [[1], [2]]}, label=[1, 0], label_mask=[[True]])


def test_a_batch_may_have_no_rows() -> None:
    batch = Batch.from_arrays(ids={"a": []}, dense={"x": np.zeros((0, 3))}, label=[])
    assert (batch.size, batch.dense["x"].shape, batch.label.shape) == (0, (0, 3), (0, 1))
