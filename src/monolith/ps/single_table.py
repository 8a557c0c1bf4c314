"""Lookup and update of one table per call: the classic calls, whose answer carries a status and a message.

Works on messages and tables; knows no transport. A deadline is looked at before every piece of work, and no call waits
for a table any longer than that.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from monolith.core.clock import Deadline
from monolith.core.errors import ConfigError, DimensionMismatch, MonolithError, RpcTimeout
from monolith.embedding.shard_map import shard_of
from monolith.embedding.store import Ids
from monolith.embedding.table import Table
from monolith.ps.messages import ApplyGradientsRequest, ApplyGradientsResponse, LookupRequest, LookupResponse
from monolith.ps.tables import ShardTables

__all__ = ["SingleTableCalls"]

_FAILED = 1


class SingleTableCalls:
    """Answers for the tables of one server; a table that nobody declared is made when it is first named."""

    def __init__(self, tables: ShardTables, default_dim: int) -> None:
        self._tables = tables
        self._default_dim = default_dim
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}

    def lookup(self, request: LookupRequest, deadline: Deadline) -> LookupResponse:
        """Return one row per id, and whether it was there before."""
        try:
            return self._lookup(request, deadline)
        except MonolithError as error:
            return LookupResponse(status_code=_FAILED, error_message=str(error))

    def apply(self, request: ApplyGradientsRequest, deadline: Deadline) -> ApplyGradientsResponse:
        """Take one optimizer step per occurrence of an id that has a row."""
        try:
            return self._apply(request, deadline)
        except MonolithError as error:
            return ApplyGradientsResponse(status_code=_FAILED, error_message=str(error))

    def _lookup(self, request: LookupRequest, deadline: Deadline) -> LookupResponse:
        table, ids = self._table(request.table_name, request.dim_size), self._ids(request.fids)
        made = 0
        if request.create_if_missing:
            with self._alone(table, deadline):
                found = table.contains(ids)
                missing = np.unique(ids[~found])
                if made := len(missing):
                    table.assign_add(missing, np.zeros((made, table.dim), np.float32), table.max_time_s)
                rows = table.lookup(ids)
        else:
            _check(deadline)
            rows, found = table.lookup(ids, return_found=True)
            rows[~found] = 0
        return LookupResponse(embeddings=rows.ravel(), found=found, num_found=int(found.sum()), num_initialized=made)

    def _apply(self, request: ApplyGradientsRequest, deadline: Deadline) -> ApplyGradientsResponse:
        table, ids = self._table(request.table_name, request.dim_size), self._ids(request.fids)
        grads = np.array(request.gradients, np.float32)
        if len(grads) != len(ids) * table.dim:
            raise DimensionMismatch(f"Gradient size mismatch: expected {len(ids) * table.dim}, got {len(grads)}")
        rates = np.full(len(table.spec.slices), request.learning_rate, np.float32)
        with self._alone(table, deadline):
            found = table.contains(ids)
            if found.any():
                rows = grads.reshape(len(ids), table.dim)[found]
                step = max(0, request.global_step)
                table.apply_gradients(ids[found], rows, rates, table.max_time_s, step, dedup=False)
        return ApplyGradientsResponse(num_updated=int(found.sum()), num_not_found=int((~found).sum()))

    def _table(self, name: str, dim: int) -> Table:
        table = self._tables.touch(name, dim, self._default_dim)
        if dim > 0 and dim != table.dim:
            raise DimensionMismatch(f"Dimension mismatch: expected {table.dim}, got {dim} (table {name!r})")
        return table

    def _ids(self, fids: object) -> Ids:
        ids = np.array(fids, np.int64)
        owners = shard_of(ids, self._tables.shards)
        strangers = np.flatnonzero(owners != self._tables.index)
        if len(strangers):
            at = strangers[0]
            raise ConfigError(
                f"id {ids[at]} belongs to shard {owners[at]} of {self._tables.shards}, this is shard "
                f"{self._tables.index}; send it there"
            )
        return ids

    @contextmanager
    def _alone(self, table: Table, deadline: Deadline) -> Iterator[None]:
        """Keep other calls of this kind from the table, so that what was found stays what is there."""
        with self._lock:
            lock = self._locks.setdefault(table.spec.name, threading.Lock())
        remaining_s = deadline.remaining_s()
        if not lock.acquire(timeout=min(remaining_s, threading.TIMEOUT_MAX)):
            raise _late()
        try:
            _check(deadline)
            yield
        finally:
            lock.release()


def _check(deadline: Deadline) -> None:
    if deadline.is_past:
        raise _late()


def _late() -> RpcTimeout:
    return RpcTimeout("Timeout: the deadline passed before the table's turn came; nothing was changed")
