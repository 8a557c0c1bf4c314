from __future__ import annotations

import pytest
import torch

from monolith.compat.tasks import merge_widths, noise_for_unknown, split_merged, visible_gpu
from monolith.core.errors import ConfigError


def test_a_slot_without_a_bias_is_one_row() -> None:
    assert merge_widths([2, 3], has_bias=False) == [5]
    assert merge_widths([1], has_bias=True) == [1]
    assert merge_widths([1, 4], has_bias=False) == [5]


def test_a_bias_comes_first_and_has_width_one() -> None:
    with pytest.raises(ConfigError, match=r"widths \[2, 1\]"):
        merge_widths([2, 1], has_bias=True)


def test_merged_rows_come_apart_with_their_gradients() -> None:
    rows = torch.ones(3, 5, requires_grad=True)
    left, right = split_merged(rows, [2, 3])
    assert (left.shape, right.shape) == ((3, 2), (3, 3))
    (right * 2).sum().backward()
    assert rows.grad is not None
    assert rows.grad[0].tolist() == [0, 0, 2, 2, 2]
    with pytest.raises(ConfigError, match=r"width 5.*\[2, 2\]"):
        split_merged(rows, [2, 2])


def test_rows_of_no_length_become_noise_within_the_bounds_and_learn_nothing() -> None:
    rows = torch.zeros(3, 50, 4)
    rows[1] = 1e-9
    rows.requires_grad_()
    noisy = noise_for_unknown(rows, -0.5, 0.25, torch.Generator().manual_seed(1))
    assert noisy[1].equal(rows[1])
    unknown = noisy[[0, 2]]
    assert -0.5 <= unknown.min() < -0.4
    assert 0.15 < unknown.max() < 0.25
    noisy.sum().backward()
    assert rows.grad is not None
    assert rows.grad.sum((1, 2)).tolist() == [0, 200, 0]
    with pytest.raises(ConfigError, match=r"from 1\.0 to 0\.0"):
        noise_for_unknown(rows, 1.0, 0.0)


def test_a_rank_below_zero_has_no_gpu() -> None:
    for wrong in ((-1, 1), (0, 0)):
        with pytest.raises(ConfigError, match="processes per GPU"):
            visible_gpu(*wrong)
