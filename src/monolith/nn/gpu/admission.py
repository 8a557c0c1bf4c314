"""``Doorkeeper``: the admission filter of a GPU table, in host memory.

The filter is the engine's, inside a table without rows: sightings, thresholds by slot, forgetting and saved counts are
those of tables in host memory. A GPU table asks only about ids without a row.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monolith.embedding import Sgd, SliceSpec, Table, TableSpec
from monolith.embedding.specs import NEVER_EXPIRES_DAYS
from monolith.embedding.store import Ids

__all__ = ["Doorkeeper"]


class Doorkeeper:
    """Decides which absent ids get a row.

    >>> from monolith.embedding import SlidingHashFilter
    >>> spec = TableSpec("t", [SliceSpec(4, optimizer=Sgd())], admission=SlidingHashFilter(300), occurrence_threshold=2)
    >>> doorkeeper = Doorkeeper(spec)
    >>> [doorkeeper.admit(np.array([7, 7, 8])).tolist() for _ in range(3)]
    [[False, False, False], [True, True, False], [True, True, True]]

    Args:
        spec: The table, with its filter and thresholds.
    """

    def __init__(self, spec: TableSpec) -> None:
        slices = [SliceSpec(1, optimizer=Sgd()) for _ in spec.slices]  # as many as the table: counts move between both
        self._table = Table(
            replace(
                spec,
                slices=slices,
                expire_days=NEVER_EXPIRES_DAYS,
                slot_expire_days={},
                max_bytes=None,
                when_full="refuse",
                on_miss="zeros",
            )
        )

    def admit(self, ids: Ids, counts: ArrayLike | None = None) -> NDArray[np.bool_]:
        """Count sightings of absent ids, and return per id whether it gets a row now.

        Args:
            ids: (N,), with repeated ids.
            counts: (N,) sightings behind each id; None = one each.
        """
        self._table.apply_gradients(ids, np.zeros((len(ids), self._table.dim), np.float32), counts=counts)
        is_admitted = self._table.contains(ids)
        self._table.delete(ids[is_admitted])  # its row is on the GPU
        return is_admitted

    @property
    def ids_filtered(self) -> int:
        """Sightings that did not give a row."""
        return self._table.stats.ids_filtered

    def copy_counts_to(self, table: Table) -> None:
        """Replace the admission counts of a table in host memory."""
        table.copy_admission_of(self._table)

    def take_counts_of(self, table: Table) -> None:
        """Continue with the admission counts of a table in host memory."""
        self._table.copy_admission_of(table)
