"""Merges all vector slices of a slot into one row, and splits the row again.

A bias, the slice of width 1 at the front, keeps a separate row. Rows of Monolith's tables hold all slices anyway.
These functions serve code that was written for tables with one slice each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from monolith.core.errors import ConfigError

__all__ = ["merge_widths", "split_merged"]


def merge_widths(widths: Sequence[int], *, has_bias: bool) -> list[int]:
    """Return the widths of the rows when vectors are merged.

    >>> merge_widths([1, 2, 3, 4], has_bias=True)
    [1, 9]

    Raises:
        ConfigError: There is to be a bias, and the first width is not 1.
    """
    if has_bias and (not widths or widths[0] != 1):
        raise ConfigError(f"the slices have widths {list(widths)}; a bias is the first of them and has width 1")
    front = list(widths[:1]) if has_bias else []
    vectors = widths[len(front) :]
    return [*front, sum(vectors)] if vectors else front


def split_merged(rows: Tensor, widths: Sequence[int]) -> list[Tensor]:
    """Return the slices of merged rows, without the bias.

    Shapes: rows (..., Σ widths); one (..., width) each.

    >>> [part.tolist() for part in split_merged(torch.arange(13, 22), [2, 3, 4])]
    [[13, 14], [15, 16, 17], [18, 19, 20, 21]]

    Raises:
        ConfigError: The widths do not add up to that of the rows.
    """
    if sum(widths) != rows.shape[-1]:
        raise ConfigError(f"rows have width {rows.shape[-1]}, the slices {list(widths)} need {sum(widths)}")
    return list(torch.split(rows, list(widths), dim=-1))
