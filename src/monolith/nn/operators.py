"""Reads whose derivative updates the tables: a function of autograd, and custom operators for ``torch.compile``.

The operators let ``torch.compile`` keep one graph around a module.

``read_*`` returns rows; its derivative calls ``update_*``, which changes the tables and returns an empty gradient for
the anchor. The tables are named by the number of their set. An ``update_*`` call is never removed from a graph,
because the gradient of the anchor is a result of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from monolith.nn.table_set import TableSet, table_set

__all__ = ["read_bags", "read_rows"]


def read_bags(tables: TableSet, values: Sequence[Tensor], offsets: Sequence[Tensor], *, training: bool) -> list[Tensor]:
    """Return per column the pooled rows of its bags; differentiable when ``training``."""
    anchor = _anchor(tables, training)
    if not torch.compiler.is_compiling():
        return list(_EagerRead.apply(anchor, tables, len(values), training, *values, *offsets))  # type: ignore[no-untyped-call]
    rows: list[Tensor] = _read_bags(anchor, list(values), list(offsets), tables.number, training)
    return rows


def read_rows(tables: TableSet, ids: Sequence[Tensor], *, training: bool) -> list[Tensor]:
    """Return per column one row per id; differentiable when ``training``."""
    anchor = _anchor(tables, training)
    if not torch.compiler.is_compiling():
        return list(_EagerRead.apply(anchor, tables, None, training, *ids))  # type: ignore[no-untyped-call]
    rows: list[Tensor] = _read_rows(anchor, list(ids), tables.number, training)
    return rows


class _EagerRead(torch.autograd.Function):
    """The same without an operator, whose dispatch costs up to a millisecond per step.

    The inputs are the values of all columns, then the offsets of ``bags`` columns; None = rows instead of bags.
    """

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, tables: TableSet, bags: int | None, training: bool, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.tables, ctx.bags = tables, bags
        ctx.save_for_backward(*inputs)
        if bags is None:
            return tuple(tables.read_rows(inputs, keep_plan=training))
        return tuple(tables.read_bags(inputs[:bags], inputs[bags:], keep_plan=training))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tables: TableSet = ctx.tables
        inputs, bags = ctx.saved_tensors, ctx.bags
        if bags is None:
            tables.update_rows(inputs, grads)
        else:
            tables.update_bags(inputs[:bags], inputs[bags:], grads)
        return torch.zeros_like(tables.anchor), *[None] * (3 + len(inputs))


def _anchor(tables: TableSet, training: bool) -> Tensor:
    return tables.anchor if training else tables.anchor.detach()


@torch.library.custom_op("monolith::read_bags", mutates_args=())
def _read_bags(anchor: Tensor, values: list[Tensor], offsets: list[Tensor], tables: int, keep: bool) -> list[Tensor]:
    return table_set(tables).read_bags(values, offsets, keep_plan=keep)


@_read_bags.register_fake
def _(anchor: Tensor, values: list[Tensor], offsets: list[Tensor], tables: int, keep: bool) -> list[Tensor]:
    found = table_set(tables)
    return [anchor.new_empty((bounds.shape[0] - 1, found.dim(number))) for number, bounds in enumerate(offsets)]


@torch.library.custom_op("monolith::update_bags", mutates_args=())
def _update_bags(
    anchor: Tensor, values: list[Tensor], offsets: list[Tensor], grads: list[Tensor], tables: int
) -> Tensor:
    table_set(tables).update_bags(values, offsets, grads)
    return torch.zeros_like(anchor)


@_update_bags.register_fake
def _(anchor: Tensor, values: list[Tensor], offsets: list[Tensor], grads: list[Tensor], tables: int) -> Tensor:
    return torch.empty_like(anchor)


def _keep_bags(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    anchor, values, offsets, ctx.tables, _ = inputs
    ctx.count = len(values)
    ctx.save_for_backward(anchor, *values, *offsets)


def _derive_bags(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    anchor, *inputs = ctx.saved_tensors
    values, offsets = inputs[: ctx.count], inputs[ctx.count :]
    gradient = _update_bags(anchor, values, offsets, list(grads), ctx.tables)
    return gradient, [None] * ctx.count, [None] * ctx.count, None, None


torch.library.register_autograd("monolith::read_bags", _derive_bags, setup_context=_keep_bags)


@torch.library.custom_op("monolith::read_rows", mutates_args=())
def _read_rows(anchor: Tensor, ids: list[Tensor], tables: int, keep: bool) -> list[Tensor]:
    return table_set(tables).read_rows(ids, keep_plan=keep)


@_read_rows.register_fake
def _(anchor: Tensor, ids: list[Tensor], tables: int, keep: bool) -> list[Tensor]:
    found = table_set(tables)
    return [anchor.new_empty((each.shape[0], found.dim(number))) for number, each in enumerate(ids)]


@torch.library.custom_op("monolith::update_rows", mutates_args=())
def _update_rows(anchor: Tensor, ids: list[Tensor], grads: list[Tensor], tables: int) -> Tensor:
    table_set(tables).update_rows(ids, grads)
    return torch.zeros_like(anchor)


@_update_rows.register_fake
def _(anchor: Tensor, ids: list[Tensor], grads: list[Tensor], tables: int) -> Tensor:
    return torch.empty_like(anchor)


def _keep_rows(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    anchor, ids, ctx.tables, _ = inputs
    ctx.save_for_backward(anchor, *ids)


def _derive_rows(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    anchor, *ids = ctx.saved_tensors
    return _update_rows(anchor, ids, list(grads), ctx.tables), [None] * len(ids), None, None


torch.library.register_autograd("monolith::read_rows", _derive_rows, setup_context=_keep_rows)
