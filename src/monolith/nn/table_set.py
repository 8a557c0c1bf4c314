"""``TableSet``: the tables behind a module, and the reads and updates of one step.

A step has one plan per shape of input: the unique ids of each table, and where they occur. ``Bags`` pools the ids of
each bag, ``Sequences`` returns one row per id. The plan of a forward pass serves its backward pass too.

Modules are used from one training thread at a time; the tables themselves may be read by other threads.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from monolith import _native
from monolith.core.errors import ConfigError, DimensionMismatch
from monolith.embedding import MultiTable
from monolith.embedding.store import Ids, Rows

__all__ = ["Column", "GradientSink", "TableSet", "table_set"]

_KEPT_PLANS = 4
"""Plans kept between forward and backward: one per forward pass that a training step makes before its backward."""

_numbers = itertools.count(1)
_sets: weakref.WeakValueDictionary[int, TableSet] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class Column:
    """One input of a module: a feature, its table, and how its ids become rows."""

    name: str
    table: str
    mode: Literal["sum", "mean"] = "sum"
    padding: int | None = None
    """Id that has no row and counts nowhere."""


class GradientSink(Protocol):
    """Receives the gradients of a backward pass instead of the tables."""

    def add(self, ids: Mapping[str, Ids], grads: Mapping[str, Rows], counts: Mapping[str, NDArray[np.uint32]]) -> None:
        """Add the gradients of unique ids, by table."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """The unique ids of a step by table, and the two directions between their rows and the module's outputs."""

    ids: Mapping[str, Ids]
    counts: Mapping[str, NDArray[np.uint32]]
    fill: Callable[[Mapping[str, Rows]], list[Tensor]]
    scatter: Callable[[Sequence[Tensor]], Mapping[str, Rows]]


class TableSet:
    """The tables of a module: reads rows, and applies their gradients or hands them to a sink.

    Custom operators refer to a set by ``number``, because their arguments are numbers and tensors.

    Args:
        store: Owner of the rows.
        columns: The inputs of the module.
    """

    def __init__(self, store: MultiTable, columns: Sequence[Column]) -> None:
        self.store = store
        self.columns = tuple(columns)
        self.number = next(_numbers)
        self.anchor = torch.zeros(0, requires_grad=True)
        """Makes outputs require a gradient, so that backward reaches the tables. It is no parameter."""
        self.step = 0
        """Updates so far; schedules of the tables read it."""
        self.time_s = 0
        """Event time that updates record with their rows, for expiry."""
        self.sink: GradientSink | None = None
        self._tables = list(store.specs)
        self._dims = {name: spec.dim for name, spec in store.specs.items()}
        self._bags = self._bag_kernel()
        self._row_kernels = {
            name: _native.Layouts([dim], [(0, "sum", 0)], [(0, 0, 0, dim, 0, 0)], [dim])
            for name, dim in self._dims.items()
        }
        self._plans: dict[tuple[int, ...], tuple[Sequence[Tensor], _Plan]] = {}
        _sets[self.number] = self

    def dim(self, column: int) -> int:
        """Return the width of a column's rows."""
        return self._dims[self.columns[column].table]

    # --- bags: one pooled row per bag ---

    def read_bags(self, values: Sequence[Tensor], offsets: Sequence[Tensor], *, keep_plan: bool) -> list[Tensor]:
        """Return per column the pooled rows of its bags, (B, D)."""
        return self._read(self._plan_bags, [*values, *offsets], keep_plan=keep_plan)

    def update_bags(self, values: Sequence[Tensor], offsets: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """Update the rows of all columns by the gradients of ``read_bags``."""
        self._update(self._plan_bags, [*values, *offsets], grads)

    # --- sequences: one row per id ---

    def read_rows(self, ids: Sequence[Tensor], *, keep_plan: bool) -> list[Tensor]:
        """Return per column one row per id, (N, D)."""
        return self._read(self._plan_rows, ids, keep_plan=keep_plan)

    def update_rows(self, ids: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """Update the rows of all columns by the gradients of ``read_rows``."""
        self._update(self._plan_rows, ids, grads)

    # --- both ---

    def _read(
        self, make_plan: Callable[[Sequence[Tensor]], _Plan], inputs: Sequence[Tensor], *, keep_plan: bool
    ) -> list[Tensor]:
        plan = make_plan(inputs)
        if keep_plan:
            while len(self._plans) >= _KEPT_PLANS:
                del self._plans[next(iter(self._plans))]
            self._plans[_key_of(inputs)] = (inputs, plan)  # the inputs stay alive, so no other tensor has their address
        return plan.fill(self.store.pull(plan.ids))

    def _update(
        self, make_plan: Callable[[Sequence[Tensor]], _Plan], inputs: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> None:
        _, plan = self._plans.pop(_key_of(inputs), (None, None))
        if plan is None:
            plan = make_plan(inputs)
        rows = plan.scatter(grads)
        if self.sink is not None:
            self.sink.add(plan.ids, rows, plan.counts)
        else:
            self.push(plan.ids, rows, counts=plan.counts)

    def push(
        self,
        ids: Mapping[str, Ids],
        grads: Mapping[str, Rows],
        *,
        counts: Mapping[str, NDArray[np.uint32]] | None = None,
        learning_rates: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        """Take one optimizer step for the given rows, and count it."""
        self.store.push(ids, grads, counts=counts, learning_rates=learning_rates, time_s=self.time_s, step=self.step)
        self.step += 1

    # --- plans ---

    def _plan_bags(self, inputs: Sequence[Tensor]) -> _Plan:
        count = len(self.columns)
        values, offsets = [], []
        for column, ids, bounds in zip(self.columns, inputs[:count], inputs[count:], strict=True):
            kept, kept_bounds = _drop_padding(column, _as_numpy(ids), _as_numpy(bounds))
            values.append(kept)
            offsets.append(kept_bounds)
        bags = len(offsets[0]) - 1
        plan = self._bags.plan(bags, values, offsets, [False] * count)
        tables = list(enumerate(self._tables))

        def fill(rows: Mapping[str, Rows]) -> list[Tensor]:
            outputs = [torch.empty((bags, self.dim(number))) for number in range(count)]
            plan.pool([rows[name] for name in self._tables], [each.numpy() for each in outputs])
            return outputs

        def scatter(grads: Sequence[Tensor]) -> Mapping[str, Rows]:
            rows = {name: np.empty((len(plan.ids(number)), self._dims[name]), np.float32) for number, name in tables}
            plan.scatter([_as_gradient(each) for each in grads], list(rows.values()))
            return rows

        return _Plan(
            {name: plan.ids(number) for number, name in tables},
            {name: plan.counts(number) for number, name in tables},
            fill,
            scatter,
        )

    def _bag_kernel(self) -> _native.Layouts:
        dims = [self._dims[column.table] for column in self.columns]
        return _native.Layouts(
            list(self._dims.values()),
            [(self._tables.index(column.table), column.mode, 0) for column in self.columns],
            [(number, number, 0, dim, 0, 0) for number, dim in enumerate(dims)],
            dims,
        )

    def _plan_rows(self, inputs: Sequence[Tensor]) -> _Plan:
        """Plan the ids of each table as bags of one id each, all columns of the table one after the other."""
        lists = [_as_numpy(each) for each in inputs]
        kept = [
            np.ones(len(ids), np.bool_) if column.padding is None else ids != column.padding
            for column, ids in zip(self.columns, lists, strict=True)
        ]
        members = {
            name: [number for number, column in enumerate(self.columns) if column.table == name]
            for name in self._tables
        }
        plans = {}
        for name, numbers in members.items():
            ids = np.concatenate([lists[number][kept[number]] for number in numbers])
            plans[name] = self._row_kernels[name].plan(len(ids), [ids], [np.arange(len(ids) + 1)], [False])

        def fill(rows: Mapping[str, Rows]) -> list[Tensor]:
            outputs = [torch.zeros((len(ids), self.dim(number))) for number, ids in enumerate(lists)]
            for name, numbers in members.items():
                found = np.empty((plans[name].rows, self._dims[name]), np.float32)
                plans[name].pool([rows[name]], [found])
                bounds = np.cumsum([0, *(int(kept[number].sum()) for number in numbers)])
                for number, first, last in zip(numbers, bounds, bounds[1:], strict=False):
                    outputs[number].numpy()[kept[number]] = found[first:last]
            return outputs

        def scatter(grads: Sequence[Tensor]) -> Mapping[str, Rows]:
            rows = {}
            for name, numbers in members.items():
                blocks = [_as_gradient(grads[number])[kept[number]] for number in numbers]
                rows[name] = np.empty((len(plans[name].ids(0)), self._dims[name]), np.float32)
                plans[name].scatter([np.concatenate(blocks)], [rows[name]])
            return rows

        return _Plan(
            {name: plan.ids(0) for name, plan in plans.items()},
            {name: plan.counts(0) for name, plan in plans.items()},
            fill,
            scatter,
        )


def table_set(number: int) -> TableSet:
    """Return the set with a number.

    Raises:
        ConfigError: The module of that set was deleted.
    """
    found = _sets.get(number)
    if found is None:
        raise ConfigError("the module of these tables was deleted before its backward pass; keep a reference to it")
    return found


def _key_of(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple(number for each in tensors for number in (each.data_ptr(), each.numel(), each._version))


def _as_numpy(tensor: Tensor) -> NDArray[np.int64]:
    return tensor.detach().to(torch.int64).contiguous().numpy()


def _as_gradient(tensor: Tensor) -> Rows:
    return tensor.detach().to(torch.float32).contiguous().numpy()


def _drop_padding(column: Column, ids: Ids, offsets: NDArray[np.int64]) -> tuple[Ids, NDArray[np.int64]]:
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(ids) or np.any(offsets[1:] < offsets[:-1]):
        raise DimensionMismatch(
            f"offsets of {column.name!r} are {_preview(offsets)}, expected rising numbers from 0 to {len(ids)}, the "
            "number of ids; see include_last_offset"
        )
    if column.padding is None:
        return ids, offsets
    kept = ids != column.padding
    before = np.concatenate([[0], np.cumsum(kept)])
    return ids[kept], before[offsets]


def _preview(numbers: NDArray[np.int64]) -> str:
    head = ", ".join(map(str, numbers[:4].tolist()))
    return f"[{head}, ... {numbers[-1]}]" if len(numbers) > 4 else f"[{head}]"
