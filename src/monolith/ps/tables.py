"""The tables of one server: created by the first client, checked by later clients, recovered, restored and cut.

Independent of transports. The native shard implements pull and push.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from monolith import _native
from monolith.artifacts.delta_log import LogPosition
from monolith.core.errors import CapacityExceeded, ConfigError, SchemaMismatch, ShardUnavailable
from monolith.embedding.multi_table import MultiTable, RestoreReport
from monolith.embedding.optimizers import Sgd
from monolith.embedding.snapshot import SavedTable, TableCut, read_manifest, spec_of
from monolith.embedding.specs import SliceSpec, TableSpec
from monolith.embedding.store import Ids, Rows
from monolith.embedding.table import Table
from monolith.ps.agreement import check_agreement
from monolith.ps.durable_log import DurableLog
from monolith.ps.job_records import Record, new_records, read_saved_state

__all__ = ["MAX_TOUCHED_TABLES", "FlushedLog", "ShardCut", "ShardTables"]

logger = logging.getLogger(__name__)

MAX_TOUCHED_TABLES = 256
"""Limit of tables that single-table calls create; each takes memory, and labels in the metrics."""


@dataclass(frozen=True, slots=True)
class FlushedLog:
    """Position of a flushed log, and the rows of one table at that position."""

    position: LogPosition
    """(0, 0) without a log."""
    ids: Ids
    rows: Rows


@dataclass(frozen=True, slots=True)
class ShardCut:
    """Tables and job state of a server at one instant."""

    tables: TableCut
    position: LogPosition | None
    """Position in the log; None without a log."""
    records: list[Record]
    """The job state; see ``job_records``."""


class ShardTables:
    """All tables of shard ``index`` of ``shards``. Thread safe.

    Tables that a client declared are saved, restored and logged. Tables that a single-table call created live as long
    as the process.

    Args:
        index: The shard.
        shards: Number of shards.
        log: Keeps changes since the last snapshot; None = a crash loses them.
    """

    def __init__(self, index: int, shards: int, log: DurableLog | None = None, *, force_expiry: bool = False) -> None:
        self.index = index
        self.shards = shards
        self.log = log
        self._force_expiry = force_expiry
        self._lock = threading.RLock()
        self._model: MultiTable | None = None
        self._shard: _native.PsShard | None = None
        self._touched: dict[str, Table] = {}
        self._base: Path | None = None
        self._is_unconfirmed = False

    # --- creation and recovery ---

    def recover(self, path: Path) -> None:
        """Load this shard's rows from a snapshot and the log, before a client declares the tables.

        If the first client declares other tables, ``connect`` reads snapshot and log again into those.
        """
        with self._lock:
            saved = read_manifest(path)
            self._base, self._is_unconfirmed = path, True
            self._make([spec_of(table) for table in saved])
            self._restore_model(path)
            try:
                self._replay(saved)
            except SchemaMismatch as difference:
                # The model changed after the snapshot; its client declares the tables.
                logger.info("delta log replay deferred difference=%s", difference)

    def connect(self, specs: Sequence[TableSpec], shards: int) -> _native.PsShard:
        """Create the tables, or check that they match; return the native shard.

        Raises:
            ConfigError: The client has another number of shards.
            SchemaMismatch: The tables differ.
        """
        if shards != self.shards:
            raise ConfigError(
                f"shards is {shards} at the client, but this server was started as {self.index} of {self.shards}; "
                "give all servers and clients the same number"
            )
        with self._lock:
            if self._model is None:
                self._begin(specs)
            elif self._is_unconfirmed:
                self._take_over(specs)
            else:
                check_agreement(list(self._model.specs.values()), specs)
            self._is_unconfirmed = False
            return self.shard

    def _take_over(self, specs: Sequence[TableSpec]) -> None:
        try:
            check_agreement(list(self._required().specs.values()), specs)
        except SchemaMismatch as difference:
            logger.info("model differs from the snapshot, recovering again difference=%s", difference)
            self._begin(specs)
            return
        if self.log is not None and self.log.position is None:  # the log has other tables
            self.log.restart(self._required(), self.shard, self._saved(), "its tables are not those of the model")

    def _begin(self, specs: Sequence[TableSpec]) -> None:
        """Create the tables, and recover their rows."""
        self._make(specs)
        try:
            if self._base is not None:
                self._restore_model(self._base)
            try:
                self._replay(self._saved())
            except SchemaMismatch as difference:
                assert self.log is not None
                self.log.restart(self._required(), self.shard, self._saved(), str(difference))
        except BaseException:
            self._model = self._shard = None  # the next client gets the same error, and no partial rows
            raise

    def _saved(self) -> Sequence[SavedTable]:
        return () if self._base is None else read_manifest(self._base)

    def _replay(self, saved: Sequence[SavedTable]) -> None:
        if self.log is not None:
            self.log.recover(self._required(), self.shard, saved)

    def _make(self, specs: Sequence[TableSpec]) -> None:
        model = MultiTable(specs, force_expiry=self._force_expiry)
        tables = [model[name]._native for name in model]
        self._shard = _native.PsShard(self.index, self.shards, tables, list(model))
        self._model = model
        for name in model:
            if (touched := self._touched.pop(name, None)) is not None:
                logger.warning("undeclared table replaced by its declaration table=%s rows=%d", name, len(touched))

    def _restore_model(self, path: str | PathLike[str]) -> RestoreReport:
        records = new_records(read_saved_state(path)) if self.index == 0 else []
        report = self._required().restore(path, shard=(self.index, self.shards))
        self.shard.replace_job_records(records)
        return report

    def touch(self, name: str, dim: int, default_dim: int) -> Table:
        """Return a table for a call that creates rows; create an undeclared one with zeros and plain SGD.

        Raises:
            ConfigError: ``name`` is empty.
            CapacityExceeded: The server has ``MAX_TOUCHED_TABLES`` undeclared tables.
        """
        with self._lock:
            table = self.find(name)
            if table is None:
                if len(self._touched) >= MAX_TOUCHED_TABLES:
                    raise CapacityExceeded(
                        f"table {name!r} is not declared, and this server has {MAX_TOUCHED_TABLES} undeclared tables, "
                        "the limit; declare the table in the model, or use fewer names"
                    )
                table = Table(TableSpec(name, [SliceSpec(dim if dim > 0 else default_dim, optimizer=Sgd())]))
                self._touched[name] = table
            return table

    # --- access ---

    @property
    def shard(self) -> _native.PsShard:
        """The native shard, which serves fused calls.

        Raises:
            ShardUnavailable: No client has connected since the server started.
        """
        with self._lock:
            if self._shard is None:
                raise ShardUnavailable(f"server {self.index} has no tables yet: it has (re)started; connect first")
            return self._shard

    def shard_of_instance(self, instance: int) -> _native.PsShard:
        """Return the native shard of this instance of the server.

        Raises:
            ShardUnavailable: The caller connected to an earlier instance, which had other rows.
        """
        shard = self.shard
        if shard.instance != instance:
            raise ShardUnavailable(f"server {self.index} has restarted since the caller connected; connect again")
        return shard

    @property
    def all(self) -> list[Table]:
        """Every table, sorted by name."""
        with self._lock:
            declared = {} if self._model is None else {name: self._model[name] for name in self._model}
            return [table for _, table in sorted({**self._touched, **declared}.items())]

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return sum(len(table) for table in self.all)

    @property
    def memory_bytes(self) -> int:
        """Bytes of all tables."""
        return sum(table.memory_bytes for table in self.all)

    def __getitem__(self, name: str) -> Table:
        table = self.find(name)
        if table is None:
            raise ConfigError(f"Table not found: {name}")
        return table

    def find(self, name: str) -> Table | None:
        """Return a table, declared or not; None for an unknown name.

        Raises:
            ConfigError: ``name`` is empty.
        """
        if not name:
            raise ConfigError("table_name is empty; name the table")
        with self._lock:
            if self._model is not None and name in self._model:
                return self._model[name]
            return self._touched.get(name)

    def _required(self) -> MultiTable:
        if self._model is None:
            raise ShardUnavailable(f"server {self.index} has no tables yet: it has (re)started; connect first")
        return self._model

    # --- whole tables ---

    def restore(self, path: str | PathLike[str]) -> RestoreReport:
        """Replace all rows by this shard's rows of a snapshot; see ``MultiTable.restore``.

        The log then holds these rows only. Marks of applied pushes stay.
        """
        with self._lock:
            self._required()
            with self._replacing():
                return self._restore_model(path)

    def rewind(self) -> None:
        """Roll back to the snapshot that the server recovered from; to empty tables without one.

        For a job that starts: the log recovered rows of an earlier job, whose data position is lost.
        """
        with self._lock:
            model = self._required()
            with self._replacing():
                if self._base is not None:
                    self._restore_model(self._base)
                    return
                for name in model:
                    model[name].clear()
                self.shard.replace_job_records([])

    @contextmanager
    def _replacing(self) -> Iterator[None]:
        """Pause pushes in the block, which replaces all rows; then log the new rows."""
        log = nullcontext() if self.log is None else self.log.replacing(self._required(), self.shard)
        # Pushes resume before the log is written, which pauses them itself.
        with log, self.shard.pause_pushes():
            yield

    def cut(self, is_valid: Callable[[], bool] = lambda: True) -> ShardCut:
        """Cut the declared tables and the job state between two pushes.

        Args:
            is_valid: Called at the instant of the cut.

        Raises:
            ShardUnavailable: ``is_valid`` returned False; try again.
            ArtifactError: The log could not be written.
        """
        with self._lock:
            shard, model = self.shard, self._required()

        def take() -> tuple[TableCut, list[Record]]:
            cut = model.cut()
            if not is_valid():
                cut.drop()
                raise ShardUnavailable(
                    f"server {self.index} applied pushes before its cut: the hold has expired; cut all servers again"
                )
            return cut, shard.job_records()

        if self.log is not None:
            position, (cut, records) = self.log.cut(take)
            return ShardCut(cut, position, records)
        with shard.pause_pushes():
            cut, records = take()
            return ShardCut(cut, None, records)

    def flush(self, table: str, is_valid: Callable[[], bool] = lambda: True) -> FlushedLog:
        """Write the log between two pushes; return its position and the rows of a table at that instant.

        Args:
            table: Name of the table; empty = none.
            is_valid: Called at that instant.

        Raises:
            ConfigError: The table does not exist.
            ShardUnavailable: ``is_valid`` returned False; try again.
            ArtifactError: The log could not be written.
        """
        copied = self[table] if table else None

        def take() -> tuple[Ids, Rows]:
            rows = (np.empty(0, np.int64), np.empty((0, 0), np.float32)) if copied is None else _all_rows(copied)
            if not is_valid():
                raise ShardUnavailable(f"server {self.index} applied pushes before its log was written; try again")
            return rows

        if self.log is None:
            with self.shard.pause_pushes():
                return FlushedLog(LogPosition(0, 0), *take())
        position, (ids, rows) = self.log.cut(take)
        return FlushedLog(position or LogPosition(0, 0), ids, rows)

    def evict(self, now_s: int | None) -> int:
        """Remove expired rows; return how many."""
        tables = self.all
        for table in tables:
            table.check_expiry(now_s)
        return sum(table.evict(now_s, force=True) for table in tables)

    def delete(self, table: str, ids: Ids) -> NDArray[np.bool_]:
        """Remove rows of a table; return for each id whether it had a row.

        Raises:
            ConfigError: The table does not exist.
        """
        rows = self[table]
        existed = rows.contains(ids)
        rows.delete(ids)
        return existed


def _all_rows(table: Table) -> tuple[Ids, Rows]:
    pages = list(table.items())
    ids = np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in pages)])
    return ids, np.concatenate([np.empty((0, table.dim), np.float32), *(rows for _, rows in pages)])
