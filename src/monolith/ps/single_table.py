"""Lookup and update of one table per call, with a status and a message in the response.

Works on messages and tables; independent of transports. Every call checks its deadline before it works, and waits for a
table no longer than that.
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

__all__ = ["ReplyBudget", "SingleTableCalls"]

_FAILED = 1


class ReplyBudget:
    """Bytes that the rows of one answer may take. Used by one call."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._taken = 0

    def take(self, count: int) -> None:
        """Take bytes before their rows are read.

        Raises:
            ConfigError: The answer would be larger than gRPC may send.
        """
        self._taken += count
        if self._taken > self._most_bytes:
            raise ConfigError(
                f"the rows take {self._taken} bytes, max_message_bytes is {self._most_bytes}; ask for fewer ids at a "
                "time, or raise it"
            )


class SingleTableCalls:
    """Serves single-table calls of one server; a lookup that creates rows creates an undeclared table too."""

    def __init__(self, tables: ShardTables, default_dim: int) -> None:
        self._tables = tables
        self._default_dim = default_dim
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}

    def lookup(self, request: LookupRequest, deadline: Deadline, budget: ReplyBudget) -> LookupResponse:
        """Return one row per id, and whether it existed before."""
        try:
            return self._lookup(request, deadline, budget)
        except MonolithError as error:
            return LookupResponse(status_code=_FAILED, error_message=str(error))

    def apply(self, request: ApplyGradientsRequest, deadline: Deadline) -> ApplyGradientsResponse:
        """Take one optimizer step per occurrence of an id that has a row."""
        try:
            return self._apply(request, deadline)
        except MonolithError as error:
            return ApplyGradientsResponse(status_code=_FAILED, error_message=str(error))

    def _lookup(self, request: LookupRequest, deadline: Deadline, budget: ReplyBudget) -> LookupResponse:
        if not request.create_if_missing and self._tables.find(request.table_name) is None:
            return self._lookup_nothing(request, budget)
        table, ids = self._table(request.table_name, request.dim_size), self._ids(request.fids)
        budget.take(len(ids) * table.dim * 4)
        made = 0
        if request.create_if_missing:
            with self._exclusive(table, deadline):
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

    def _lookup_nothing(self, request: LookupRequest, budget: ReplyBudget) -> LookupResponse:
        """Return zeros for a table that does not exist; a read creates no table."""
        count = len(self._ids(request.fids))
        dim = request.dim_size if request.dim_size > 0 else self._default_dim
        budget.take(count * dim * 4)
        return LookupResponse(embeddings=np.zeros(count * dim, np.float32), found=np.zeros(count, np.bool_))

    def _apply(self, request: ApplyGradientsRequest, deadline: Deadline) -> ApplyGradientsResponse:
        if self._tables.find(request.table_name) is None:  # no id has a row
            return ApplyGradientsResponse(num_not_found=len(self._ids(request.fids)))
        table, ids = self._table(request.table_name, request.dim_size), self._ids(request.fids)
        grads = np.array(request.gradients, np.float32)
        if len(grads) != len(ids) * table.dim:
            raise DimensionMismatch(f"Gradient size mismatch: expected {len(ids) * table.dim}, got {len(grads)}")
        rates = np.full(len(table.spec.slices), request.learning_rate, np.float32)
        with self._exclusive(table, deadline):
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
        foreign = np.flatnonzero(owners != self._tables.index)
        if len(foreign):
            at = foreign[0]
            raise ConfigError(
                f"id {ids[at]} belongs to shard {owners[at]} of {self._tables.shards}, this is shard "
                f"{self._tables.index}; send it there"
            )
        return ids

    @contextmanager
    def _exclusive(self, table: Table, deadline: Deadline) -> Iterator[None]:
        """Exclude other single-table calls from the table between its check and its change."""
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
    return RpcTimeout("Timeout: the deadline passed before the table was free; nothing was changed")
