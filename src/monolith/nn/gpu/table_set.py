"""``GpuTableSet``: the tables of a module in the memory of a GPU. No call waits for the GPU in a steady step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import override

from monolith.embedding import MultiTable, Table, TableSpec
from monolith.nn.gpu.device import GpuDevice, open_device
from monolith.nn.gpu.table import Found, GpuTable
from monolith.nn.table_set import DistinctGradients, InputColumn, Plan, TableSet

__all__ = ["GpuTableSet"]


class GpuTableSet(TableSet):
    """The tables of a module, on one GPU.

    Args:
        specs: The tables.
        columns: The inputs of the module.
        device: The GPU.
        host_bytes: Host memory per table for rows that have no room on the GPU; see ``GpuTable``.
    """

    def __init__(
        self,
        specs: Sequence[TableSpec],
        columns: Sequence[InputColumn],
        device: str | torch.device | GpuDevice,
        *,
        host_bytes: int | None = None,
    ) -> None:
        self._gpu, self._host_bytes = open_device(device), host_bytes
        self.tables = {spec.name: self._make_table(spec) for spec in specs}
        """The tables, for direct use."""
        super().__init__(specs, columns, self._gpu.place)

    def _make_table(self, spec: TableSpec) -> GpuTable:
        return GpuTable(spec, self._gpu, host_bytes=self._host_bytes)

    @override
    def plan_bags(self, inputs: Sequence[Tensor]) -> Plan:
        count = len(self.columns)
        return self._plan(inputs[:count], inputs[count:])

    @override
    def plan_rows(self, inputs: Sequence[Tensor]) -> Plan:
        return self._plan(inputs, None)

    def _plan(self, values: Sequence[Tensor], offsets: Sequence[Tensor] | None) -> Plan:
        parts = []
        for name, table in self.tables.items():
            joined = self.join_columns(name, values, offsets)
            found = table.find(joined.ids, joined.skipped)
            parts.append(_Part(name, table, joined.columns, joined.sizes, found, joined.offsets, joined.shares))
        return _GpuPlan(parts, len(self.columns))

    def join_columns(self, table: str, values: Sequence[Tensor], offsets: Sequence[Tensor] | None) -> JoinedColumns:
        """Return the ids and bags of all columns of a table."""
        numbers = [number for number, column in enumerate(self.columns) if column.table == table]
        ids = _join([values[number].to(torch.int64) for number in numbers])
        skipped = self._find_padding(numbers, values)
        bounds, shares = None, None
        if offsets is not None:
            bounds = _join_offsets([offsets[number].to(torch.int64) for number in numbers])
            if any(self.columns[number].mode == "mean" for number in numbers):
                shares = _shares([self.columns[number].mode for number in numbers], bounds, skipped)
        sizes = [len(values[number]) if offsets is None else len(offsets[number]) - 1 for number in numbers]
        return JoinedColumns(numbers, sizes, ids, skipped, bounds, shares)

    def _find_padding(self, numbers: Sequence[int], values: Sequence[Tensor]) -> Tensor | None:
        """Return which ids of the columns are padding; None where no column has a padding id."""
        if all(self.columns[number].padding is None for number in numbers):
            return None
        masks = []
        for number in numbers:
            padding = self.columns[number].padding
            ids = values[number]
            masks.append(torch.zeros_like(ids, dtype=torch.bool) if padding is None else ids == padding)
        return _join(masks)

    @override
    def apply(self, gradients: Mapping[str, DistinctGradients], rates: Mapping[str, float]) -> None:
        for name, each in gradients.items():
            self.tables[name].apply_gradients(
                each.ids, each.grads, learning_rates=rates[name], time_s=self.time_s, step=self.step, counts=each.counts
            )

    @override
    def row_counts(self) -> dict[str, int]:
        return {name: len(table) for name, table in self.tables.items()}

    @override
    def host_tables(self) -> Mapping[str, Table]:
        self.peers.check_one_process()
        return {name: table.to_host() for name, table in self.tables.items()}

    @override
    def write(self, folder: Path) -> None:
        MultiTable.of(self.host_tables()).save(folder)

    @override
    def read(self, folder: Path) -> None:
        host = MultiTable(self.specs.values())
        host.restore(folder)
        for name in self.tables:
            self.replace_table(name, host[name])

    def replace_table(self, name: str, host: Table) -> None:
        """Replace all rows of a table by those of one in host memory."""
        fresh = self._make_table(self.specs[name])
        fresh.add_rows_of(host)
        self.tables[name] = fresh


@dataclass(frozen=True, slots=True, eq=False)
class JoinedColumns:
    """The ids of all columns of one table, one column after the other."""

    columns: Sequence[int]
    sizes: Sequence[int]
    """Outputs of each column."""
    ids: Tensor
    skipped: Tensor | None
    """Padding; None = no column has a padding id."""
    offsets: Tensor | None
    shares: Tensor | None
    """Factor of every bag: 1, or 1 / its length for columns that take means."""


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The ids of all columns of one table, one column after the other."""

    name: str
    table: GpuTable
    columns: Sequence[int]
    sizes: Sequence[int]
    found: Found
    offsets: Tensor | None
    shares: Tensor | None
    """Factor of every bag: 1, or 1 / its length for columns that take means."""


class _GpuPlan:
    """One read of all columns."""

    def __init__(self, parts: Sequence[_Part], columns: int) -> None:
        self._parts, self._columns = parts, columns

    def read(self, *, before_update: bool) -> list[Tensor]:
        outputs: dict[int, Tensor] = {}
        for part in self._parts:
            rows = part.table.pool(part.found, part.offsets)
            if part.shares is not None:
                rows *= part.shares
            outputs |= zip(part.columns, torch.split(rows, list(part.sizes)), strict=True)
        if self._columns == 1:
            return [outputs[0]]
        return [outputs[number].clone() for number in range(self._columns)]

    def sum_gradients(self, grads: Sequence[Tensor]) -> Mapping[str, DistinctGradients]:
        gradients = {}
        for part in self._parts:
            rows = self._join(part, grads)
            if part.offsets is not None:
                rows = rows.repeat_interleave(part.offsets.diff(), dim=0)
            kept, skipped = part.found.ids, part.found.skipped
            if skipped is not None:
                kept, rows = kept[~skipped], rows[~skipped]
            ids, places, counts = torch.unique(kept, return_inverse=True, return_counts=True)
            summed = torch.zeros((len(ids), rows.shape[1]), device=rows.device).index_add_(0, places, rows)
            gradients[part.name] = DistinctGradients(ids, summed, counts)
        return gradients

    def update(self, grads: Sequence[Tensor], *, time_s: int, step: int) -> None:
        for part in self._parts:
            part.table.apply(part.found, part.offsets, self._join(part, grads), time_s=time_s, step=step)

    def _join(self, part: _Part, grads: Sequence[Tensor]) -> Tensor:
        rows = _join([grads[number].to(torch.float32) for number in part.columns])
        return rows if part.shares is None else rows * part.shares


def _join(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def _join_offsets(offsets: Sequence[Tensor]) -> Tensor:
    joined = [offsets[0]]
    for each in offsets[1:]:
        joined.append(each[1:] + joined[-1][-1:])
    return torch.cat(joined)


def _shares(modes: Sequence[str], offsets: Tensor, skipped: Tensor | None) -> Tensor:
    """Return the factor of every bag; skipped ids do not count in a mean."""
    ends = offsets
    if skipped is not None:
        ends = torch.nn.functional.pad((~skipped).long().cumsum(0), (1, 0))[offsets]
    lengths = ends.diff().reshape(len(modes), -1)
    is_mean = torch.tensor([mode == "mean" for mode in modes], device=offsets.device)[:, None]
    return torch.where(is_mean, 1.0 / lengths.clamp(min=1), 1.0).reshape(-1, 1)
