"""``GpuRankTableSet``: tables of a module whose rows are sharded over the GPUs of a group.

Every read, update, save and load is collective, as in ``monolith.nn.ranks``: the same owner of a row, and the same mean
of gradients. Ids, rows and gradients travel over NCCL where the group has it, else through host memory by gloo. A read
waits for the GPU, because the host must know how many ids each rank asks for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from typing_extensions import override

from monolith.embedding import MultiTable, TableSpec
from monolith.embedding.ranks import RankStore
from monolith.nn.gpu.table_set import GpuTableSet
from monolith.nn.ranks import RankPeers
from monolith.nn.table_set import DistinctGradients, InputColumn, Plan

__all__ = ["GpuRankTableSet", "owner_of"]


class GpuRankTableSet(GpuTableSet):
    """The tables of a module, sharded over the ranks of a group; each rank has a GPU.

    Args:
        specs: The tables, the same at all ranks.
        columns: The inputs, the same at all ranks.
        device: The GPU of this rank.
        group: The processes. Its backend for host memory is gloo; the one for GPUs may be NCCL.
        host_bytes: Host memory of this rank per table, for rows that have no room on its GPU.

    Raises:
        ConfigError: The group cannot exchange tensors of host memory.
    """

    def __init__(
        self,
        specs: Sequence[TableSpec],
        columns: Sequence[InputColumn],
        device: torch.device,
        group: ProcessGroup,
        *,
        host_bytes: int | None = None,
    ) -> None:
        ranks = RankPeers(group)
        self._ranks = ranks
        self._exchange = _Exchange(group, ranks.size, device)
        super().__init__(specs, columns, device, host_bytes=host_bytes)
        self.peers = ranks

    # --- steps ---

    @override
    def _plan(self, values: Sequence[Tensor], offsets: Sequence[Tensor] | None) -> Plan:
        parts = []
        for name in self.tables:
            joined = self.join_columns(name, values, offsets)
            is_kept = None if joined.skipped is None else ~joined.skipped
            kept = joined.ids if is_kept is None else joined.ids[is_kept]
            ids, places, counts = torch.unique(kept, return_inverse=True, return_counts=True)
            if is_kept is not None:  # padding has a row of zeros behind the others
                every = torch.full_like(joined.ids, len(ids))
                every[is_kept] = places
                places = every
            gradients = DistinctGradients(ids, torch.empty(0, device=self.device), counts)
            parts.append(_Part(name, joined.columns, joined.sizes, gradients, places, joined.offsets, joined.shares))
        return _RankPlan(self, parts)

    def pull(self, name: str, ids: Tensor) -> Tensor:
        """Return one row per id, from the ranks that own them."""
        route = self._exchange.route(ids)
        wanted = self._exchange.send(ids[route.order], route.sent, route.received)
        rows = self._exchange.send(self.tables[name].lookup(wanted), route.received, route.sent)
        arranged = torch.empty_like(rows)
        arranged[route.order] = rows
        return arranged

    def push_mean(
        self,
        gradients: Mapping[str, DistinctGradients],
        rates: Mapping[str, float] | None,
        *,
        time_s: int,
        step: int,
    ) -> None:
        """Take one optimizer step per id, with the mean of the gradients of all ranks."""
        newest_s = int(self._ranks.steps.all_gather_ints([time_s]).max())
        for name, table in self.tables.items():
            each = gradients.get(name)
            if each is None:
                none = torch.empty(0, dtype=torch.int64, device=self.device)
                each = DistinctGradients(none, torch.empty((0, table.dim), device=self.device), none)
            ids, grads, counts = self._collect(each)
            rate = None if rates is None else rates[name]
            table.apply_gradients(ids, grads, learning_rates=rate, time_s=newest_s, step=step, counts=counts)

    def _collect(self, own: DistinctGradients) -> tuple[Tensor, Tensor, Tensor]:
        """Return the ids, gradients and sightings of all ranks for the rows of this rank."""
        route = self._exchange.route(own.ids)
        columns = (own.ids, own.grads / self._ranks.size, own.counts)
        ids, grads, counts = (self._exchange.send(each[route.order], route.sent, route.received) for each in columns)
        return ids, grads, counts

    @override
    def apply(self, gradients: Mapping[str, DistinctGradients], rates: Mapping[str, float]) -> None:
        self.push_mean(gradients, rates, time_s=self.time_s, step=self.step)

    # --- files ---

    @override
    def write(self, folder: Path) -> None:
        store = RankStore(self._ranks, self.specs.values())
        store.tables = MultiTable.of({name: table.to_host() for name, table in self.tables.items()})
        store.snapshot(folder)

    @override
    def read(self, folder: Path) -> None:
        store = RankStore(self._ranks, self.specs.values())
        store.restore(folder)
        for name in self.tables:
            self.replace_table(name, store.tables[name])


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The ids of all columns of one table."""

    name: str
    columns: Sequence[int]
    sizes: Sequence[int]
    distinct: DistinctGradients
    """Distinct ids and their occurrences; without gradients yet."""
    places: Tensor
    """Place of every occurrence among the distinct ids."""
    offsets: Tensor | None
    shares: Tensor | None


class _RankPlan:
    """One read of all columns."""

    def __init__(self, tables: GpuRankTableSet, parts: Sequence[_Part]) -> None:
        self._tables, self._parts = tables, parts

    def read(self, *, before_update: bool) -> list[Tensor]:
        outputs: dict[int, Tensor] = {}
        for part in self._parts:
            rows = self._tables.pull(part.name, part.distinct.ids)
            rows = torch.cat([rows, rows.new_zeros((1, rows.shape[1]))])
            if part.offsets is None:
                rows = rows[part.places]
            else:
                rows = torch.nn.functional.embedding_bag(
                    part.places, rows, part.offsets, mode="sum", include_last_offset=True
                )
            if part.shares is not None:
                rows = rows * part.shares
            outputs |= zip(part.columns, torch.split(rows, list(part.sizes)), strict=True)
        return [outputs[number].clone() for number in range(len(outputs))]

    def sum_gradients(self, grads: Sequence[Tensor]) -> Mapping[str, DistinctGradients]:
        gradients = {}
        for part in self._parts:
            rows = torch.cat([grads[number].to(torch.float32) for number in part.columns])
            if part.shares is not None:
                rows = rows * part.shares
            if part.offsets is not None:
                rows = rows.repeat_interleave(part.offsets.diff(), dim=0)
            ids = part.distinct.ids
            summed = torch.zeros((len(ids) + 1, rows.shape[1]), device=rows.device).index_add_(0, part.places, rows)
            gradients[part.name] = DistinctGradients(ids, summed[:-1], part.distinct.counts)
        return gradients

    def update(self, grads: Sequence[Tensor], *, time_s: int, step: int) -> None:
        self._tables.push_mean(self.sum_gradients(grads), None, time_s=time_s, step=step)


def owner_of(ids: Tensor, ranks: int) -> Tensor:
    """Return the rank of every id: ``uint64(id) mod ranks``.

    >>> owner_of(torch.tensor([5, -1]), 3).tolist()
    [2, 0]
    """
    owners = torch.remainder(ids, ranks)
    return torch.where(ids < 0, (owners + (1 << 64) % ranks) % ranks, owners)


@dataclass(frozen=True, slots=True, eq=False)
class _Route:
    """Order of ids by owner, and how many go to and come from each rank."""

    order: Tensor
    sent: list[int]
    received: list[int]


class _Exchange:
    """Sends tensors of a GPU between the ranks of a group."""

    def __init__(self, group: ProcessGroup, ranks: int, device: torch.device) -> None:
        self._group, self._ranks, self._device = group, ranks, device
        has_nccl = "nccl" in str(dist.get_backend_config(group))
        self._wire = device if has_nccl else torch.device("cpu")

    def route(self, ids: Tensor) -> _Route:
        """Return the route of ids to their owners."""
        owners = owner_of(ids, self._ranks)
        sent = torch.bincount(owners, minlength=self._ranks).to(self._wire)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self._group)
        return _Route(torch.argsort(owners, stable=True), sent.tolist(), received.tolist())

    def send(self, tensor: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """Return the rows of a tensor that all ranks send here, in the order of the ranks."""
        out = torch.empty((sum(received), *tensor.shape[1:]), dtype=tensor.dtype, device=self._wire)
        dist.all_to_all_single(out, tensor.to(self._wire).contiguous(), received, sent, group=self._group)
        return out.to(self._device)
