"""``RankTableSet``: tables of a module whose rows are sharded over the processes of a group, in host memory.

Every read, update, save and load is collective: all ranks make it, in the same order. Each rank reads its own batch;
rank r has the rows whose ``uint64(id) mod ranks`` is r. Gradients of equal ids are summed over ranks and divided by the
number of ranks, as ``DistributedDataParallel`` does with those of parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike
from torch.distributed import ProcessGroup
from typing_extensions import override

from monolith.core.errors import ConfigError
from monolith.embedding import MultiTable, TableSpec
from monolith.embedding.ranks import Channel, RankStore
from monolith.embedding.store import Ids, Rows
from monolith.nn.host import HostTableSet
from monolith.nn.table_set import InputColumn, Peers

__all__ = ["RankPeers", "RankTableSet"]


class RankTableSet(HostTableSet):
    """The tables of a module, sharded over the ranks of a group.

    Args:
        specs: The tables, the same at all ranks.
        columns: The inputs, the same at all ranks.
        group: The processes; its backend for host memory is gloo.

    Raises:
        ConfigError: The group cannot exchange tensors of host memory.
    """

    def __init__(self, specs: Sequence[TableSpec], columns: Sequence[InputColumn], group: ProcessGroup) -> None:
        peers = RankPeers(group)
        self._ranks = RankStore(peers, specs)
        super().__init__(specs, columns, store=_MeanStore(self._ranks))
        self.peers = peers

    @property
    @override
    def own_rows(self) -> MultiTable:
        return self._ranks.tables

    @override
    def write(self, folder: Path) -> None:
        self._ranks.snapshot(folder)

    @override
    def read(self, folder: Path) -> None:
        self._ranks.restore(folder)


class _MeanStore:
    """A ``RankStore`` that takes the mean of the ranks' gradients."""

    def __init__(self, store: RankStore) -> None:
        self._store = store

    def pull(self, ids: Mapping[str, Ids]) -> Mapping[str, Rows]:
        """Return one row per id, from the ranks that own them."""
        return self._store.pull(ids)

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
        """Take one optimizer step per id, with the mean of the gradients of all ranks."""
        share = np.float32(1.0 / self._store.shards)
        shares = {name: rows * share for name, rows in grads.items()}
        self._store.push(ids, shares, counts=counts, learning_rates=learning_rates, time_s=time_s, step=step)


class RankPeers(Peers):
    """The ranks of a process group, with one channel: reads, updates and saves of a module are calls of one thread.

    Args:
        group: The processes; its backend for host memory is gloo.

    Raises:
        ConfigError: The group cannot exchange tensors of host memory.
    """

    def __init__(self, group: ProcessGroup) -> None:
        backend = dist.get_backend_config(group)
        if "gloo" not in backend:
            raise ConfigError(
                f"group has the backend {backend!r}, expected gloo for rows in host memory; make the group with "
                "backend='cpu:gloo,cuda:nccl'"
            )
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.is_chief = self.rank == 0
        self.steps = self.rows = self.saves = Channel(group, self.rank, self.size, torch.device("cpu"))

    @property
    @override
    def is_sharded(self) -> bool:
        return True

    @override
    def broadcast(self, text: str) -> str:
        return self.steps.broadcast_bytes(text.encode()).decode()

    @override
    def all_agree(self, is_fine: bool) -> bool:
        return bool(self.steps.all_gather_ints([is_fine]).all())
