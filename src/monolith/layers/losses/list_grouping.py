"""Turns a flat batch into padded lists for the ranking losses. Sizes depend on the data, so it runs before a model."""

from __future__ import annotations

import torch
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.layers._arguments import check_rank

__all__ = ["group_by_list"]


def group_by_list(rank_id: Tensor, labels: Tensor, *columns: Tensor) -> tuple[Tensor, ...]:
    """Group a batch by ``rank_id`` into padded lists: labels are padded with −1, other columns with 0.

    Lists are in the order of their first row, and rows keep their order. Gradients flow back to the rows. Labels of a
    type without −1 (bool or unsigned) become floats.

    Shapes: all inputs (B,); all results (lists, longest list).

    >>> ids, labels, scores = torch.tensor([7, 3, 7]), torch.tensor([1.0, 0.0, 0.0]), torch.rand(3)
    >>> labels, scores = group_by_list(ids, labels, scores)
    >>> labels.tolist(), scores.shape
    ([[1.0, 0.0], [0.0, -1.0]], torch.Size([2, 2]))
    """
    check_rank("rank_id", rank_id, 1, "(B,)")
    for position, column in enumerate((labels, *columns)):
        if column.shape != rank_id.shape:
            name = "labels" if position == 0 else f"column {position}"
            raise ConfigError(
                f"{name} has shape {tuple(column.shape)}, rank_id {tuple(rank_id.shape)}; give one per row"
            )
    if not labels.dtype.is_signed:
        labels = labels.to(torch.get_default_dtype())
    if rank_id.numel() == 0:
        return tuple(column.reshape(0, 0) for column in (labels, *columns))
    list_of_row, position_in_list = _places(rank_id)
    sizes = (int(list_of_row.max()) + 1, int(position_in_list.max()) + 1)
    place = (list_of_row, position_in_list)
    fills = (-1.0, *[0.0] * len(columns))
    return tuple(
        column.new_full(sizes, fill).index_put(place, column)
        for fill, column in zip(fills, (labels, *columns), strict=True)
    )


def _places(rank_id: Tensor) -> tuple[Tensor, Tensor]:
    """Return, per row, the number of its list (by first occurrence) and its position in it."""
    _, by_value = torch.unique(rank_id, return_inverse=True)
    rows = torch.arange(rank_id.numel(), device=rank_id.device)
    lists = int(by_value.max()) + 1
    first = torch.full((lists,), rank_id.numel(), device=rank_id.device).scatter_reduce(0, by_value, rows, "amin")
    number = torch.empty_like(first)
    number[first.argsort()] = torch.arange(lists, device=rank_id.device)
    list_of_row = number[by_value]
    order = torch.argsort(list_of_row, stable=True)
    starts = torch.cumsum(torch.bincount(list_of_row, minlength=lists), 0).roll(1)
    starts[0] = 0
    position = torch.empty_like(rows)
    position[order] = rows - starts[list_of_row[order]]
    return list_of_row, position
