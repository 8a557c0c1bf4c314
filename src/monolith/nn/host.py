"""``HostTableSet``: tables in host memory, by the step kernels that ``mt.Model`` uses too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from typing_extensions import override

from monolith import _native
from monolith.core.errors import DimensionMismatch
from monolith.embedding import MultiTable, RowPlan, Table, TableSpec
from monolith.embedding.multi_table import PlannedRows
from monolith.embedding.store import Ids, Rows
from monolith.nn.table_set import DistinctGradients, InputColumn, Plan, TableSet

__all__ = ["HostTableSet", "RowStore"]


class RowStore(Protocol):
    """Rows of distinct ids, by table: the part of ``EmbeddingStore`` that a step needs."""

    def pull(self, ids: Mapping[str, Ids]) -> Mapping[str, Rows]:
        """Return one row per id."""
        ...

    def push(
        self,
        ids: Mapping[str, Ids],
        grads: Mapping[str, Rows],
        *,
        counts: Mapping[str, ArrayLike] | None = None,
        learning_rates: Mapping[str, ArrayLike] | None = None,
        time_s: int = 0,
        step: int = 0,
    ) -> None:
        """Take one optimizer step per id."""
        ...


class HostTableSet(TableSet):
    """The tables of a module, in host memory.

    Args:
        specs: The tables.
        columns: The inputs of the module.
        store: Store of the rows; None makes tables in this process.
    """

    def __init__(
        self, specs: Sequence[TableSpec], columns: Sequence[InputColumn], *, store: RowStore | None = None
    ) -> None:
        super().__init__(specs, columns, torch.device("cpu"))
        self._store: RowStore = MultiTable(specs) if store is None else store
        self._spare: list[RowPlan] = []
        self._names = list(self.specs)
        self._dims = {name: spec.dim for name, spec in self.specs.items()}
        dims = [self._dims[column.table] for column in self.columns]
        self._bags = _native.Layouts(
            list(self._dims.values()),
            [(self._names.index(column.table), column.mode, 0) for column in self.columns],
            [(number, number, 0, dim, 0, 0) for number, dim in enumerate(dims)],
            dims,
        )
        self._rows = {
            name: _native.Layouts([dim], [(0, "sum", 0)], [(0, 0, 0, dim, 0, 0)], [dim])
            for name, dim in self._dims.items()
        }

    @property
    def own_rows(self) -> MultiTable:
        """The rows that this process holds."""
        if not isinstance(self._store, MultiTable):
            raise NotImplementedError(f"rows of {type(self).__name__} are in a {type(self._store).__name__}")
        return self._store

    @override
    def plan_bags(self, inputs: Sequence[Tensor]) -> Plan:
        count = len(self.columns)
        pairs = [
            _drop_padding(column, _as_numpy(ids), _as_numpy(bounds))
            for column, ids, bounds in zip(self.columns, inputs[:count], inputs[count:], strict=True)
        ]
        if count == 1 and isinstance(self._store, MultiTable):
            (column,), ((ids, bounds),) = self.columns, pairs
            return _TablePlan(self._store[column.table], ids, bounds, column.mode, self._plan_pairs, self._spare)
        return self._plan_pairs(pairs)

    def _plan_pairs(self, pairs: Sequence[tuple[Ids, NDArray[np.int64]]]) -> _BagPlan:
        count = len(pairs)
        bags = len(pairs[0][1]) - 1
        plan = self._bags.plan(bags, [ids for ids, _ in pairs], [bounds for _, bounds in pairs], [False] * count)
        return _BagPlan(self._store, self._dims, plan, [self._dims[column.table] for column in self.columns])

    @override
    def plan_rows(self, inputs: Sequence[Tensor]) -> Plan:
        lists = [_as_numpy(each) for each in inputs]
        kept = [
            np.ones(len(ids), np.bool_) if column.padding is None else ids != column.padding
            for column, ids in zip(self.columns, lists, strict=True)
        ]
        members = {
            name: [number for number, column in enumerate(self.columns) if column.table == name] for name in self._names
        }
        plans = {}
        for name, numbers in members.items():
            ids = np.concatenate([lists[number][kept[number]] for number in numbers])
            plans[name] = self._rows[name].plan(len(ids), [ids], [np.arange(len(ids) + 1)], [False])
        return _RowPlan(self._store, self._dims, plans, members, kept)

    @override
    def apply(self, gradients: Mapping[str, DistinctGradients], rates: Mapping[str, float]) -> None:
        self._store.push(
            {name: each.ids.numpy() for name, each in gradients.items()},
            {name: each.grads.contiguous().numpy() for name, each in gradients.items()},
            counts={name: each.counts.numpy() for name, each in gradients.items()},
            learning_rates={name: [rates[name]] for name in gradients},
            time_s=self.time_s,
            step=self.step,
        )

    @override
    def row_counts(self) -> dict[str, int]:
        return {name: len(self.own_rows[name]) for name in self.own_rows}

    @override
    def host_tables(self) -> Mapping[str, Table]:
        return {name: self.own_rows[name] for name in self.own_rows}

    @override
    def write(self, folder: Path) -> None:
        self.own_rows.save(folder)

    @override
    def read(self, folder: Path) -> None:
        self.own_rows.restore(folder)


class _StorePlan(ABC):
    """A plan whose rows come from a store and whose gradients go there."""

    def __init__(
        self,
        store: RowStore,
        dims: Mapping[str, int],
        ids: Mapping[str, Ids],
        counts: Mapping[str, NDArray[np.uint32]],
    ) -> None:
        self._store, self._dims, self._ids, self._counts = store, dims, ids, counts

    def read(self, *, before_update: bool) -> list[Tensor]:
        return self._fill(self._store.pull(self._ids))

    def sum_gradients(self, grads: Sequence[Tensor]) -> Mapping[str, DistinctGradients]:
        rows = self._scatter([_as_gradient(each) for each in grads])
        return {
            name: DistinctGradients(
                torch.from_numpy(self._ids[name].copy()),  # the plan owns them
                torch.from_numpy(rows[name]),
                torch.from_numpy(self._counts[name].astype(np.int64)),
            )
            for name in rows
        }

    def update(self, grads: Sequence[Tensor], *, time_s: int, step: int) -> None:
        rows = self._scatter([_as_gradient(each) for each in grads])
        self._store.push(self._ids, rows, counts=self._counts, time_s=time_s, step=step)

    @abstractmethod
    def _fill(self, rows: Mapping[str, Rows]) -> list[Tensor]:
        """Return the outputs of all columns, from the rows of distinct ids."""

    @abstractmethod
    def _scatter(self, grads: Sequence[Rows]) -> Mapping[str, Rows]:
        """Return the gradients of distinct ids, from those of the outputs."""


class _BagPlan(_StorePlan):
    """Pooled rows: one plan over the bags of all columns."""

    def __init__(self, store: RowStore, dims: Mapping[str, int], plan: _native.StepPlan, widths: Sequence[int]) -> None:
        tables = list(enumerate(dims))
        super().__init__(
            store,
            dims,
            {name: plan.ids(number) for number, name in tables},
            {name: plan.counts(number) for number, name in tables},
        )
        self._plan, self._widths = plan, widths
        self._places: PlannedRows | None = None

    @override
    def read(self, *, before_update: bool) -> list[Tensor]:
        if not before_update or type(self._store) is not MultiTable:
            return super().read(before_update=before_update)
        self._places = self._store.pull_planned(self._plan, list(self._dims))
        return self._fill(dict(zip(self._dims, self._places.rows, strict=True)))

    @override
    def update(self, grads: Sequence[Tensor], *, time_s: int, step: int) -> None:
        places, self._places = self._places, None
        if places is None:
            super().update(grads, time_s=time_s, step=step)
            return
        rows = self._scatter([_as_gradient(each) for each in grads])
        places.push(list(rows.values()), time_s=time_s, step=step)

    @override
    def _fill(self, rows: Mapping[str, Rows]) -> list[Tensor]:
        outputs = [torch.empty((self._plan.rows, width)) for width in self._widths]
        self._plan.pool([rows[name] for name in self._dims], [each.numpy() for each in outputs])
        return outputs

    @override
    def _scatter(self, grads: Sequence[Rows]) -> Mapping[str, Rows]:
        rows = {name: np.empty((len(ids), self._dims[name]), np.float32) for name, ids in self._ids.items()}
        self._plan.scatter(grads, list(rows.values()))
        return rows


class _TablePlan:
    """Pooled rows of one column, by the calls of its table: no copy of the distinct rows is made.

    A read before an update fills a ``RowPlan``, so that the update does not search the ids again. ``spare`` keeps the
    memory of such plans from step to step.
    """

    def __init__(
        self,
        table: Table,
        ids: Ids,
        offsets: NDArray[np.int64],
        mode: Literal["sum", "mean"],
        plan_pairs: Callable[[Sequence[tuple[Ids, NDArray[np.int64]]]], _BagPlan],
        spare: list[RowPlan],
    ) -> None:
        self._table, self._ids, self._offsets, self._mode = table, ids, offsets, mode
        self._plan_pairs, self._spare = plan_pairs, spare
        self._places: RowPlan | None = None

    def read(self, *, before_update: bool) -> list[Tensor]:
        if before_update:
            self._places = self._spare.pop() if self._spare else RowPlan()
        rows = self._table.lookup_pooled(self._ids, self._offsets, self._mode, plan=self._places)
        return [torch.from_numpy(rows)]

    def sum_gradients(self, grads: Sequence[Tensor]) -> Mapping[str, DistinctGradients]:
        return self._plan_pairs([(self._ids, self._offsets)]).sum_gradients(grads)

    def update(self, grads: Sequence[Tensor], *, time_s: int, step: int) -> None:
        rows = _as_gradient(grads[0])
        if self._places is None:
            self._table.apply_pooled_gradients(self._ids, self._offsets, rows, self._mode, time_s=time_s, step=step)
            return
        self._table.apply_planned_gradients(self._places, rows, time_s=time_s, step=step)
        self._spare.append(self._places)
        self._places = None


class _RowPlan(_StorePlan):
    """One row per id: per table, the ids of its columns one after the other, as bags of one id each."""

    def __init__(
        self,
        store: RowStore,
        dims: Mapping[str, int],
        plans: Mapping[str, _native.StepPlan],
        members: Mapping[str, Sequence[int]],
        kept: Sequence[NDArray[np.bool_]],
    ) -> None:
        super().__init__(
            store,
            dims,
            {name: plan.ids(0) for name, plan in plans.items()},
            {name: plan.counts(0) for name, plan in plans.items()},
        )
        self._plans, self._members, self._kept = plans, members, kept

    @override
    def _fill(self, rows: Mapping[str, Rows]) -> list[Tensor]:
        outputs = {}
        for name, numbers in self._members.items():
            dim = self._dims[name]
            block = np.empty((self._plans[name].rows, dim), np.float32)
            self._plans[name].pool([rows[name]], [block])
            bounds = np.cumsum([0, *(int(self._kept[number].sum()) for number in numbers)])
            for number, first, last in zip(numbers, bounds[:-1], bounds[1:], strict=True):
                outputs[number] = torch.zeros((len(self._kept[number]), dim))
                outputs[number].numpy()[self._kept[number]] = block[first:last]
        return [outputs[number] for number in range(len(self._kept))]

    @override
    def _scatter(self, grads: Sequence[Rows]) -> Mapping[str, Rows]:
        rows = {}
        for name, numbers in self._members.items():
            block = np.concatenate([grads[number][self._kept[number]] for number in numbers])
            rows[name] = np.empty((len(self._ids[name]), self._dims[name]), np.float32)
            self._plans[name].scatter([block], [rows[name]])
        return rows


def _as_numpy(tensor: Tensor) -> NDArray[np.int64]:
    return tensor.detach().to(torch.int64).contiguous().numpy()


def _as_gradient(tensor: Tensor) -> Rows:
    return tensor.detach().to(torch.float32).contiguous().numpy()


def _drop_padding(column: InputColumn, ids: Ids, offsets: NDArray[np.int64]) -> tuple[Ids, NDArray[np.int64]]:
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
