"""Reads whose derivative updates the tables: ``read_tensors``, and custom operators for ``torch.compile``.

The operators let ``torch.compile`` keep one graph around a module.

``read_*`` returns rows; its derivative calls ``update_*``, which changes the tables and returns an empty gradient for
the anchor. The tables are named by the number of their set. An ``update_*`` call is never removed from a graph,
because the gradient of the anchor is a result of the graph. Nor are two equal calls merged: each has its own number.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.embedding.autograd import read_tensors
from monolith.nn.table_set import Plan, TableSet, table_set

__all__ = ["read_bags", "read_rows"]

_calls = itertools.count()
"""Numbers of update calls, taken while a backward pass is traced."""
_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)  # torch 2.6 lacks it


def read_bags(tables: TableSet, values: Sequence[Tensor], offsets: Sequence[Tensor], *, training: bool) -> list[Tensor]:
    """Return per column the pooled rows of its bags; differentiable when ``training``."""
    anchor = _anchor(tables, training)
    if not torch.compiler.is_compiling():
        inputs = [*values, *offsets]
        return list(read_tensors(_PlanSource(tables, tables.plan_bags(inputs), training=training), anchor, inputs))
    _check_not_exported(tables)
    rows: list[Tensor] = _read_bags(anchor, list(values), list(offsets), tables.number, training)
    return rows


def read_rows(tables: TableSet, ids: Sequence[Tensor], *, training: bool) -> list[Tensor]:
    """Return per column one row per id; differentiable when ``training``."""
    anchor = _anchor(tables, training)
    if not torch.compiler.is_compiling():
        return list(read_tensors(_PlanSource(tables, tables.plan_rows(ids), training=training), anchor, ids))
    _check_not_exported(tables)
    rows: list[Tensor] = _read_rows(anchor, list(ids), tables.number, training)
    return rows


class _PlanSource:
    """One plan of a set of tables, without an operator, whose dispatch costs up to a millisecond per step."""

    has_optional_gradients = False

    def __init__(self, tables: TableSet, plan: Plan, *, training: bool) -> None:
        self._tables, self._plan, self._training = tables, plan, training

    def read(self) -> Sequence[Tensor]:
        return self._plan.read(before_update=self._training)

    def take_gradients(self, grads: Sequence[Tensor]) -> None:
        self._tables.take_gradients(self._plan, grads)


def _check_not_exported(tables: TableSet) -> None:
    """Refuse ``torch.export``: its program names tables of this process by number and holds no rows."""
    if _is_exporting():
        raise ConfigError(
            f"module with tables {list(tables.specs)} is traced by torch.export, expected mt.export.export_module: a "
            "program of torch.export holds no rows"
        )


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
    anchor: Tensor, values: list[Tensor], offsets: list[Tensor], grads: list[Tensor], tables: int, call: int
) -> Tensor:
    table_set(tables).update_bags(values, offsets, grads)
    return torch.zeros_like(anchor)


@_update_bags.register_fake
def _(
    anchor: Tensor, values: list[Tensor], offsets: list[Tensor], grads: list[Tensor], tables: int, call: int
) -> Tensor:
    return torch.empty_like(anchor)


def _keep_bags(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    anchor, values, offsets, ctx.tables, _ = inputs
    ctx.count = len(values)
    ctx.save_for_backward(anchor, *values, *offsets)


def _derive_bags(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    anchor, *inputs = ctx.saved_tensors
    values, offsets = inputs[: ctx.count], inputs[ctx.count :]
    gradient = _update_bags(anchor, values, offsets, list(grads), ctx.tables, next(_calls))
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
def _update_rows(anchor: Tensor, ids: list[Tensor], grads: list[Tensor], tables: int, call: int) -> Tensor:
    table_set(tables).update_rows(ids, grads)
    return torch.zeros_like(anchor)


@_update_rows.register_fake
def _(anchor: Tensor, ids: list[Tensor], grads: list[Tensor], tables: int, call: int) -> Tensor:
    return torch.empty_like(anchor)


def _keep_rows(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    anchor, ids, ctx.tables, _ = inputs
    ctx.save_for_backward(anchor, *ids)


def _derive_rows(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    anchor, *ids = ctx.saved_tensors
    return _update_rows(anchor, ids, list(grads), ctx.tables, next(_calls)), [None] * len(ids), None, None


torch.library.register_autograd("monolith::read_rows", _derive_rows, setup_context=_keep_rows)
