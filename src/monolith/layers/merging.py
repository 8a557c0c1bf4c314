"""``merge_tensor_list``: returns the per-feature tensors of a layer concatenated, stacked, or as a list.

Every layer with an ``out_type`` uses it.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from monolith.core.errors import ConfigError

__all__ = ["MergeType", "extend_as_list", "merge_tensor_list"]


class MergeType(enum.Enum):
    """The form of an output of n features."""

    CONCAT = "concat"
    """(B, n·k)."""
    STACK = "stack"
    """(B, n, k)."""
    NONE = None
    """A list of n tensors (B, k)."""


def check_merge_type(label: str, value: MergeType | str | None) -> MergeType:
    """Return the merge type meant by ``value``."""
    try:
        return MergeType(value)
    except ValueError:
        raise ConfigError(f"{label} is {value!r}; give 'concat', 'stack' or None") from None


def merge_tensor_list(
    tensors: Tensor | Sequence[Tensor],
    merge_type: MergeType | str | None = "concat",
    num_feature: int | None = None,
    axis: int = 1,
    keep_list: bool = False,
) -> Tensor | list[Tensor]:
    """Bring features into the asked form.

    A single (B, n, k) tensor: ``stack`` leaves it, ``concat`` gives (B, n·k), None gives n tensors (B, k). A single
    (B, n·k) tensor with ``num_feature`` n above 1: ``stack`` gives (B, n, k), ``concat`` leaves it, None gives n
    tensors. Several tensors are stacked or concatenated along ``axis``, or returned as a list. ``keep_list`` wraps a
    single result in a list.

    >>> parts = [torch.zeros(2, 3), torch.ones(2, 3)]
    >>> merge_tensor_list(parts).shape, merge_tensor_list(parts, "stack").shape
    (torch.Size([2, 6]), torch.Size([2, 2, 3]))
    >>> len(merge_tensor_list(torch.zeros(2, 5, 4), None))
    5
    """
    merge = check_merge_type("merge_type", merge_type)
    parts = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    if not parts:
        raise ConfigError("merge_tensor_list got an empty list; give at least one tensor")
    merged = _merge_one(parts[0], merge, num_feature, axis) if len(parts) == 1 else _merge_many(parts, merge, axis)
    return [merged] if keep_list and isinstance(merged, Tensor) else merged


def _merge_many(parts: list[Tensor], merge: MergeType, axis: int) -> Tensor | list[Tensor]:
    if merge is MergeType.STACK:
        return torch.stack(parts, dim=axis)
    return torch.cat(parts, dim=axis) if merge is MergeType.CONCAT else parts


def _merge_one(tensor: Tensor, merge: MergeType, num_feature: int | None, axis: int) -> Tensor | list[Tensor]:
    if tensor.dim() == 2 and num_feature is not None and num_feature > 1:
        if merge is MergeType.CONCAT:
            return tensor
        if tensor.shape[1] % num_feature:
            raise ConfigError(
                f"merge_tensor_list cannot split width {tensor.shape[1]} into num_feature {num_feature}; "
                "the width must be a multiple of it"
            )
        tensor = torch.unflatten(tensor, 1, (num_feature, -1))
    if tensor.dim() == 2:
        return [tensor] if merge is MergeType.NONE else tensor
    if tensor.dim() != 3:
        raise ConfigError(f"merge_tensor_list got shape {tuple(tensor.shape)}; give (B, n, k), (B, n·k) or a list")
    if merge is MergeType.STACK:
        return tensor
    return tensor.flatten(1) if merge is MergeType.CONCAT else list(tensor.unbind(axis))


def extend_as_list(value: Any, size: int) -> list[Any]:
    """Return ``size`` entries: a shorter list padded with None, or a single value copied deeply ``size`` times.

    >>> extend_as_list(["relu"], 2), extend_as_list("relu", 2)
    (['relu', None], ['relu', 'relu'])
    """
    if isinstance(value, list | tuple):
        if len(value) > size:
            raise ConfigError(f"a list of {len(value)} entries was given where {size} are needed; shorten it")
        return [*value, *[None] * (size - len(value))]
    return [copy.deepcopy(value) for _ in range(size)]
