"""``HostTableSet``: tables in host memory, read and updated by ``PlannedRead`` as the rows of ``mt.Model``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from monolith import _native
from monolith.core.errors import DimensionMismatch
from monolith.embedding import MultiTable, RowPlan, Table, TableSpec
from monolith.embedding.planned_read import PlannedRead
from monolith.embedding.store import Ids, Rows, RowStore
from monolith.nn.table_set import DistinctGradients, InputColumn, Plan, TableSet

__all__ = ["HostTableSet", "check_offsets"]


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
        read = PlannedRead(self._store, plan, self._names)
        return _BagPlan(read, self._dims, [self._dims[column.table] for column in self.columns])

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
            plan = self._rows[name].plan(len(ids), [ids], [np.arange(len(ids) + 1)], [False])
            read = PlannedRead(self._store, plan, [name])
            plans[name] = _BagPlan(read, {name: self._dims[name]}, [self._dims[name]])
        return _RowPlan(plans, members, kept)

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
        self.peers.check_one_process()
        return {name: self.own_rows[name] for name in self.own_rows}

    @override
    def write(self, folder: Path) -> None:
        self.own_rows.save(folder)

    @override
    def read(self, folder: Path) -> None:
        self.own_rows.restore(folder)


class _BagPlan:
    """Pooled rows: one plan over the bags of all columns."""

    def __init__(self, read: PlannedRead, dims: Mapping[str, int], widths: Sequence[int]) -> None:
        self._read, self._dims, self._widths = read, dims, widths

    def read(self, *, before_update: bool) -> list[Tensor]:
        rows = self._read.pull(before_push=before_update)
        outputs = [torch.empty((self._read.plan.rows, width)) for width in self._widths]
        self._read.pool(rows, [each.numpy() for each in outputs])
        return outputs

    def sum_gradients(self, grads: Sequence[Tensor]) -> Mapping[str, DistinctGradients]:
        return _as_distinct(self._read, self._sum(grads))

    def update(self, grads: Sequence[Tensor], *, time_s: int, step: int) -> None:
        self._read.push(list(self._sum(grads).values()), time_s=time_s, step=step)

    def _sum(self, grads: Sequence[Tensor]) -> dict[str, Rows]:
        rows = {name: np.empty((len(ids), self._dims[name]), np.float32) for name, ids in self._read.ids().items()}
        self._read.sum_gradients([_as_gradient(each) for each in grads], list(rows.values()))
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


class _RowPlan:
    """One row per id: per table, the ids of its columns one after the other, as bags of one id each."""

    def __init__(
        self,
        bags: Mapping[str, _BagPlan],
        members: Mapping[str, Sequence[int]],
        kept: Sequence[NDArray[np.bool_]],
    ) -> None:
        self._bags, self._members, self._kept = bags, members, kept

    def read(self, *, before_update: bool) -> list[Tensor]:
        outputs = {}
        for name, numbers in self._members.items():
            (block,) = self._bags[name].read(before_update=before_update)
            lengths = [int(self._kept[number].sum()) for number in numbers]
            for number, rows in zip(numbers, torch.split(block, lengths), strict=True):
                outputs[number] = torch.zeros((len(self._kept[number]), block.shape[1]))
                outputs[number].numpy()[self._kept[number]] = rows.numpy()
        return [outputs[number] for number in range(len(self._kept))]

    def sum_gradients(self, grads: Sequence[Tensor]) -> Mapping[str, DistinctGradients]:
        summed: dict[str, DistinctGradients] = {}
        for name, bags in self._bags.items():
            summed |= bags.sum_gradients([self._join(name, grads)])
        return summed

    def update(self, grads: Sequence[Tensor], *, time_s: int, step: int) -> None:
        for name, bags in self._bags.items():
            bags.update([self._join(name, grads)], time_s=time_s, step=step)

    def _join(self, table: str, grads: Sequence[Tensor]) -> Tensor:
        """Return the gradients of all columns of a table, without those of padding."""
        blocks = [_as_gradient(grads[number])[self._kept[number]] for number in self._members[table]]
        return torch.from_numpy(np.concatenate(blocks))


def _as_distinct(read: PlannedRead, rows: Mapping[str, Rows]) -> Mapping[str, DistinctGradients]:
    ids, counts = read.ids(), read.counts()
    return {
        name: DistinctGradients(
            torch.from_numpy(ids[name].copy()),  # the plan owns them
            torch.from_numpy(rows[name]),
            torch.from_numpy(counts[name].astype(np.int64)),
        )
        for name in rows
    }


def _as_numpy(tensor: Tensor) -> NDArray[np.int64]:
    return tensor.detach().to(torch.int64).contiguous().numpy()


def _as_gradient(tensor: Tensor) -> Rows:
    return tensor.detach().to(torch.float32).contiguous().numpy()


def check_offsets(name: str, offsets: NDArray[np.int64], ids: int) -> None:
    """Raise ``DimensionMismatch`` unless the offsets divide ``ids`` ids into bags."""
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != ids or np.any(offsets[1:] < offsets[:-1]):
        raise DimensionMismatch(
            f"offsets of {name!r} are {_preview(offsets)}, expected rising numbers from 0 to {ids}, the "
            "number of ids; see include_last_offset"
        )


def _drop_padding(column: InputColumn, ids: Ids, offsets: NDArray[np.int64]) -> tuple[Ids, NDArray[np.int64]]:
    check_offsets(column.name, offsets, len(ids))
    if column.padding is None:
        return ids, offsets
    kept = ids != column.padding
    before = np.concatenate([[0], np.cumsum(kept)])
    return ids[kept], before[offsets]


def _preview(numbers: NDArray[np.int64]) -> str:
    head = ", ".join(map(str, numbers[:4].tolist()))
    return f"[{head}, ... {numbers[-1]}]" if len(numbers) > 4 else f"[{head}]"
