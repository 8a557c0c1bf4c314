"""``PlannedRead``: one read of a store by the plan of a batch, and the update that may follow.

``mt.Model`` and the modules of ``mt.nn`` read and update rows in host memory by this class only: it pulls distinct
rows, pools them, sums the gradients per distinct id, and pushes. One thread at a time uses a read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from monolith import _native
from monolith.embedding.multi_table import MultiTable, PlannedRows
from monolith.embedding.store import Ids, Rows, RowStore

__all__ = ["PlannedRead"]


class PlannedRead:
    """The rows of a plan.

    Shapes: U = distinct ids of a table, D = width of its rows, B = rows of an output, W = its width.

    Args:
        store: Owner of the rows.
        plan: Distinct ids of a batch, and where each of them occurs.
        tables: Names of the plan's tables, in its order.
    """

    def __init__(self, store: RowStore, plan: _native.StepPlan, tables: Sequence[str]) -> None:
        self._store, self._tables = store, tables
        self.plan = plan
        self._places: PlannedRows | None = None

    def ids(self) -> dict[str, Ids]:
        """Return the distinct ids of every table; the plan owns them."""
        return {name: self.plan.ids(number) for number, name in enumerate(self._tables)}

    def counts(self) -> dict[str, NDArray[np.uint32]]:
        """Return the occurrences behind every distinct id; the plan owns them."""
        return {name: self.plan.counts(number) for number, name in enumerate(self._tables)}

    def pull(self, *, before_push: bool) -> Sequence[Rows]:
        """Return the rows per table, (U, D), by one call of the store.

        Args:
            before_push: Whether an update of these rows follows. Tables of this process then keep the places of the
                rows, so that ``push`` does not search them again.
        """
        if before_push and type(self._store) is MultiTable:  # a subclass may override pull and push
            self._places = self._store.pull_planned(self.plan, self._tables)
            return self._places.rows
        rows = self._store.pull(self.ids())
        return [rows[name] for name in self._tables]

    def pool(self, rows: Sequence[Rows], outputs: Sequence[Rows]) -> None:
        """Fill the outputs, (B, W) each, from the rows of ``pull``."""
        self.plan.pool(rows, outputs)

    def sum_gradients(self, grads: Sequence[Rows | None], rows: Sequence[Rows]) -> Sequence[float]:
        """Sum the gradients of the outputs per distinct id.

        Args:
            grads: Per output, (B, W); None = zero.
            rows: Per table, (U, D); overwritten.

        Returns:
            The sum of squares per table.
        """
        return self.plan.scatter(grads, rows)

    def push(self, grads: Sequence[Rows], *, time_s: int, step: int, dropped: Mapping[str, Ids] | None = None) -> None:
        """Take one optimizer step per distinct id, by one call of the store.

        Args:
            grads: Per table, (U, D).
            time_s: Event time of the batch.
            step: Number of the batch.
            dropped: Ids by table whose updates are left out.
        """
        places, self._places = self._places, None
        if places is not None and not dropped:
            places.push(grads, time_s=time_s, step=step)
            return
        ids, counts = self.ids(), self.counts()
        rows = dict(zip(self._tables, grads, strict=True))
        for name, blocked in (dropped or {}).items():
            if name in ids:
                kept = ~np.isin(ids[name], blocked)
                ids[name], rows[name], counts[name] = ids[name][kept], rows[name][kept], counts[name][kept]
        self._store.push(ids, rows, counts=counts, time_s=time_s, step=step)
