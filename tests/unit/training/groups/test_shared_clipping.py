"""Clipping by the norms of all ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from monolith.layers.clipping import ClippingConfig, GradClipType, clip_gradients
from monolith.training.groups.shared_clipping import clip_shared

RULES: list[dict[str, Any]] = [
    {},
    {"clip_norm": 1.0},
    {"clip_norm": 2.0, "sparse_clip_norm": 0.5, "sparse_norm_warmup_steps": 4},
    {"clip_type": GradClipType.ClipByNorm, "clip_norm": 0.7},
    {"clip_type": GradClipType.ClipByValue, "clip_norm": 0.3},
    {"clip_type": GradClipType.ClipByDenseAndSparse, "clip_norm": 0.5, "sparse_clip_norm": 0.6},
    {"clip_type": GradClipType.ClipByDenseAndSparse, "clip_norm": 0.5},
    {"clip_type": GradClipType.NoClip},
    {"clip_norm": None},
]


@pytest.mark.parametrize("options", RULES)
def test_ranks_clip_as_one_process_with_all_rows_would(options: dict[str, Any]) -> None:
    numbers = torch.Generator().manual_seed(1)
    dense = [torch.randn(3, 2, generator=numbers), torch.randn(4, generator=numbers)]
    sparse = [torch.randn(6, 2, generator=numbers), torch.randn(5, 3, generator=numbers)]
    config = ClippingConfig(**options)
    whole_dense, whole_sparse = clip_gradients(dense, sparse, config, step=2)
    squares = torch.stack([each.square().sum() for each in sparse])
    for rows in (slice(0, 2), slice(2, None)):
        own_dense, own_sparse = clip_shared(dense, [each[rows] for each in sparse], squares, config, 2)
        for one, other in zip(own_dense, whole_dense, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
        for one, other in zip(own_sparse, whole_sparse, strict=True):
            torch.testing.assert_close(one, other[rows], rtol=0, atol=0)


def test_a_step_without_weights_and_rows_is_clipped_too() -> None:
    assert clip_shared([], [], torch.empty(0), ClippingConfig(clip_norm=1.0), 0) == ([], [])
