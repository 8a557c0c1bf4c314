"""Clipping of one member's gradients by the norms of the gradients of all members."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from monolith.layers.clipping import ClippingConfig, GradClipType, clip_by_global_norm, clip_by_norm, clip_gradients

__all__ = ["clip_shared"]


def clip_shared(
    dense: Sequence[Tensor], sparse: Sequence[Tensor], squares: Tensor, config: ClippingConfig, step: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Clip like ``clip_gradients`` would with the rows of all members in one process.

    Args:
        dense: Gradients of the weights, the same at all members.
        sparse: Gradients of this member's rows, per table.
        squares: Per table, the sum of squares over all members.
        config: The rule.
        step: The step about to be applied.

    >>> config = ClippingConfig(clip_norm=1.0)
    >>> dense, sparse = clip_shared([torch.ones(1)], [torch.ones(1)], torch.tensor([3.0]), config, 0)
    >>> dense[0].tolist(), sparse[0].tolist()
    ([0.5], [0.5])
    """
    bound = config.clip_norm
    if bound is None or config.clip_type in (GradClipType.NoClip, GradClipType.ClipByValue):
        return clip_gradients(dense, sparse, config, step)
    if config.clip_type is GradClipType.ClipByNorm:
        rows = [
            clip_by_global_norm([each], bound, square.sqrt())[0] for each, square in zip(sparse, squares, strict=True)
        ]
        return [clip_by_norm(each, bound) for each in dense], rows
    if config.clip_type is GradClipType.ClipByDenseAndSparse:
        clipped = list(sparse)
        if config.sparse_clip_norm is not None:
            clipped = clip_by_global_norm(sparse, config.sparse_clip_norm, squares.sum().sqrt())
        return clip_by_global_norm(dense, bound), clipped
    sparse_bound = bound if config.sparse_clip_norm is None else config.sparse_clip_norm
    if config.sparse_norm_warmup_steps is not None:
        sparse_bound *= min(1.0, step / config.sparse_norm_warmup_steps)
    device = dense[0].device if dense else squares.device
    parts = [*(each.detach().square().sum() for each in dense), *squares.to(device)]
    norm = torch.stack(parts).sum().sqrt() if parts else torch.zeros(())
    return clip_by_global_norm(dense, bound, norm), clip_by_global_norm(sparse, sparse_bound, norm)
