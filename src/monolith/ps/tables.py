"""The tables that one server holds: made by the first client, agreed on by the others, restored, cut and watched.

Knows no transport. What pull and push mean is the native shard's business.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from monolith import _native
from monolith.artifacts.delta_log import LogPosition
from monolith.core.errors import ConfigError, SchemaMismatch, ShardUnavailable
from monolith.embedding.multi_table import MultiTable, RestoreReport
from monolith.embedding.optimizers import Sgd
from monolith.embedding.snapshot import SavedTable, TableCut, read_manifest, spec_of
from monolith.embedding.specs import SliceSpec, TableSpec
from monolith.embedding.store import Ids, Rows
from monolith.embedding.table import Table
from monolith.ps.agreement import check_agreement
from monolith.ps.durable_log import DurableLog

__all__ = ["FlushedLog", "ShardTables"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FlushedLog:
    """A segment of the log, and the rows of one table at its moment."""

    position: LogPosition
    """(0, 0) where there is no log."""
    ids: Ids
    rows: Rows


class ShardTables:
    """All tables of shard ``index`` of ``shards``. Safe to use from several threads.

    Those that a client declared are saved, restored and kept in the log; those that a single-table call made on the way
    live as long as the process.

    Args:
        index: Which shard.
        shards: Of how many.
        log: What keeps changes since the last snapshot; None = they are lost with the process.
    """

    def __init__(self, index: int, shards: int, log: DurableLog | None = None) -> None:
        self.index = index
        self.shards = shards
        self.log = log
        self._lock = threading.RLock()
        self._model: MultiTable | None = None
        self._shard: _native.PsShard | None = None
        self._touched: dict[str, Table] = {}
        self._base: Path | None = None
        self._is_unconfirmed = False

    # --- coming to be ---

    def recover(self, path: Path) -> None:
        """Take this shard's rows from a snapshot and the log, before any client has said what the tables are.

        The first client may still say it differently; then both are read again into its tables.
        """
        with self._lock:
            saved = read_manifest(path)
            self._base, self._is_unconfirmed = path, True
            self._make([spec_of(table) for table in saved])
            self._restore_model(path)
            try:
                self._replay(saved)
            except SchemaMismatch as difference:
                # Of a model that changed after the snapshot: its client says what the tables are.
                logger.info("the delta log waits for its tables difference=%s", difference)

    def connect(self, specs: Sequence[TableSpec], shards: int) -> _native.PsShard:
        """Make the tables, or check that they are these; return what answers for them.

        Raises:
            ConfigError: The client counts other servers.
            SchemaMismatch: The tables are others.
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
            logger.info("the model differs from what was saved; recovering once more difference=%s", difference)
            self._begin(specs)
            return
        if self.log is not None and self.log.position is None:  # a log of other tables than those that there are
            self.log.begin_anew(self._required(), self.shard, self._saved(), "its tables are not those of the model")

    def _begin(self, specs: Sequence[TableSpec]) -> None:
        """Make the tables, and fill them with what there is to recover from."""
        self._make(specs)
        try:
            if self._base is not None:
                self._restore_model(self._base)
            try:
                self._replay(self._saved())
            except SchemaMismatch as difference:
                assert self.log is not None
                self.log.begin_anew(self._required(), self.shard, self._saved(), str(difference))
        except BaseException:
            self._model = self._shard = None  # the next client is told the same, and does not get half of the rows
            raise

    def _saved(self) -> Sequence[SavedTable]:
        return () if self._base is None else read_manifest(self._base)

    def _replay(self, saved: Sequence[SavedTable]) -> None:
        if self.log is not None:
            self.log.recover(self._required(), self.shard, saved)

    def _make(self, specs: Sequence[TableSpec]) -> None:
        for spec in specs:
            if spec.name in self._touched:
                check_agreement([self._touched[spec.name].spec], [spec])
        model = MultiTable(specs)
        tables = [model[name]._native for name in model]
        self._shard = _native.PsShard(self.index, self.shards, tables, list(model))
        self._model = model

    def _restore_model(self, path: str | PathLike[str]) -> RestoreReport:
        return self._required().restore(path, shard=(self.index, self.shards))

    def touch(self, name: str, dim: int, default_dim: int) -> Table:
        """Return a table for a single-table call; one that nobody declared is made: zeros, plain SGD."""
        with self._lock:
            table = self._find(name)
            if table is None:
                if not name:
                    raise ConfigError("table_name is empty; name the table")
                table = Table(TableSpec(name, [SliceSpec(dim if dim > 0 else default_dim, optimizer=Sgd())]))
                self._touched[name] = table
            return table

    # --- what is there ---

    @property
    def shard(self) -> _native.PsShard:
        """What answers fused calls.

        Raises:
            ShardUnavailable: No client has connected since the server started.
        """
        with self._lock:
            if self._shard is None:
                raise ShardUnavailable(f"server {self.index} has no tables yet: it was (re)started; connect first")
            return self._shard

    def shard_of_start(self, instance: int) -> _native.PsShard:
        """Return ``shard`` to a caller that knows it.

        Raises:
            ShardUnavailable: The caller knows an earlier start of the server, whose rows are not these.
        """
        shard = self.shard
        if shard.instance != instance:
            raise ShardUnavailable(f"server {self.index} was started anew since the caller connected; connect again")
        return shard

    @property
    def all(self) -> list[Table]:
        """Every table, by name."""
        with self._lock:
            found = {} if self._model is None else {name: self._model[name] for name in self._model}
            return [table for _, table in sorted({**self._touched, **found}.items())]

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return sum(len(table) for table in self.all)

    @property
    def memory_bytes(self) -> int:
        """Bytes of all tables."""
        return sum(table.memory_bytes for table in self.all)

    def __getitem__(self, name: str) -> Table:
        table = self._find(name)
        if table is None:
            raise ConfigError(f"Table not found: {name}")
        return table

    def _find(self, name: str) -> Table | None:
        with self._lock:
            if self._model is not None and name in self._model:
                return self._model[name]
            return self._touched.get(name)

    def _required(self) -> MultiTable:
        if self._model is None:
            raise ShardUnavailable(f"server {self.index} has no tables yet: it was (re)started; connect first")
        return self._model

    # --- whole tables ---

    def restore(self, path: str | PathLike[str]) -> RestoreReport:
        """Replace all rows by this shard's of a snapshot; see ``MultiTable.restore``.

        The log then holds these rows, whatever it held before. Remembered pushes stay remembered.
        """
        with self._lock:
            self._required()
            with self._replacing():
                return self._restore_model(path)

    def rewind(self) -> None:
        """Take back everything that was learnt since what the server recovered from: a snapshot, or nothing at all.

        For a job that begins: what the log brought back is of one whose place in the data is lost.
        """
        with self._lock:
            model = self._required()
            with self._replacing():
                if self._base is not None:
                    self._restore_model(self._base)
                    return
                for name in model:
                    model[name].clear()

    def _replacing(self) -> AbstractContextManager[None]:
        return nullcontext() if self.log is None else self.log.replacing(self._required(), self.shard)

    def cut(self, is_valid: Callable[[], bool] = lambda: True) -> tuple[TableCut, LogPosition | None]:
        """Take the declared tables as they are now, between two pushes; return also where in the log that is.

        Args:
            is_valid: Asked at the very instant.

        Raises:
            ShardUnavailable: It was not valid; to be tried again.
            ArtifactError: The log could not be written.
        """
        with self._lock:
            shard, model = self.shard, self._required()

        def take() -> TableCut:
            cut = model.cut()
            if not is_valid():
                cut.drop()
                raise ShardUnavailable(f"server {self.index} let pushes through before it was cut; cut all once more")
            return cut

        if self.log is not None:
            position, cut = self.log.cut(take)
            return cut, position
        with shard.pause_pushes():
            return take(), None

    def flush(self, table: str, is_valid: Callable[[], bool] = lambda: True) -> FlushedLog:
        """Write the log as it is between two pushes, and return a table's rows of that moment.

        Args:
            table: Which; empty: none.
            is_valid: Asked at the very instant.

        Raises:
            ConfigError: There is no such table.
            ShardUnavailable: It was not valid; to be tried again.
            ArtifactError: The log could not be written.
        """
        copied = self[table] if table else None

        def take() -> tuple[Ids, Rows]:
            found = (np.empty(0, np.int64), np.empty((0, 0), np.float32)) if copied is None else _all_rows(copied)
            if not is_valid():
                raise ShardUnavailable(f"server {self.index} let pushes through before its log was written; try again")
            return found

        if self.log is None:
            with self.shard.pause_pushes():
                return FlushedLog(LogPosition(0, 0), *take())
        position, (ids, rows) = self.log.cut(take)
        return FlushedLog(position or LogPosition(0, 0), ids, rows)

    def evict(self, now_s: int | None) -> int:
        """Remove expired rows; return how many."""
        return sum(table.evict(now_s) for table in self.all)

    def set_budgets(self, headroom_bytes: int | None) -> None:
        """Let every table grow by at most this much, and never beyond its own budget; None = by any amount."""
        for table in self.all:
            own = table.spec.max_bytes
            if headroom_bytes is None:
                table._native.set_budget(own or 0)
                continue
            allowed = max(1, table.memory_bytes + headroom_bytes)
            table._native.set_budget(allowed if own is None else min(own, allowed))


def _all_rows(table: Table) -> tuple[Ids, Rows]:
    lots = list(table.items())
    ids = np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in lots)])
    return ids, np.concatenate([np.empty((0, table.dim), np.float32), *(rows for _, rows in lots)])
