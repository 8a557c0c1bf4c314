from __future__ import annotations

import pytest
import torch

from monolith.compat.tasks import noise_for_unknown, visible_gpu
from monolith.core.errors import ConfigError


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
