"""``HostTier``: rows of a GPU table that its memory budget has no room for, in host memory.

``choose_cold`` names the rows that move there: those with the oldest stamps. A row is either on the GPU or in the tier.
A row moves back before a step reads it, so no lookup misses a row of the tier.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from monolith.embedding import NoFilter, Table, TableSpec
from monolith.embedding.store import Ids

__all__ = ["Entries", "HostTier", "choose_cold"]

Entries = tuple[Ids, NDArray[np.uint32], NDArray[np.float32]]
"""Ids, times, and rows with their optimizer state."""


class HostTier:
    """Rows in host memory.

    Args:
        spec: The table.
        max_bytes: Budget of the tier.
    """

    def __init__(self, spec: TableSpec, max_bytes: int) -> None:
        plain = replace(spec, admission=NoFilter(), occurrence_threshold=0, slot_thresholds={})
        self._table = Table(replace(plain, max_bytes=max_bytes))

    def __len__(self) -> int:
        return len(self._table)

    @property
    def memory_bytes(self) -> int:
        """Bytes in host memory."""
        return self._table.memory_bytes

    def put(self, entries: Entries) -> None:
        """Add rows.

        Raises:
            CapacityExceeded: The budget of the tier has no room; nothing was added.
        """
        self._table.import_entries(*entries)

    def read(self, ids: Ids) -> Entries:
        """Return the rows of those ids that are here."""
        return self._table.read_entries(ids)

    def remove(self, ids: Ids) -> Ids:
        """Remove rows, and return the ids that were here."""
        present = ids[self._table.contains(ids)]
        self._table.delete(present)
        return present

    def evict(self, now_s: int) -> Ids:
        """Remove expired rows, and return their ids."""
        before = self.ids()
        self._table.evict(now_s, force=True)
        return before[~self._table.contains(before)]

    def ids(self) -> Ids:
        """Return the ids of all rows."""
        return np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in self._table.items())])

    def export_entries(self, batch_size: int) -> Iterator[Entries]:
        """Iterate over all rows."""
        return self._table.export_entries(batch_size)


def choose_cold(stamps: Tensor, is_needed: Tensor, count: int) -> Tensor:
    """Return which rows leave the GPU, (N,) bool: at most ``count``, with the oldest stamps, and none that is needed.

    >>> choose_cold(torch.tensor([5, 1, 3, 2]), torch.tensor([False, True, False, False]), 2).tolist()
    [False, False, True, True]
    """
    newest = torch.iinfo(torch.int64).max
    ranked = torch.where(is_needed, newest, stamps.long())
    is_cold = torch.zeros_like(is_needed)
    is_cold[torch.topk(ranked, min(count, len(ranked)), largest=False).indices] = True
    return is_cold & ~is_needed
