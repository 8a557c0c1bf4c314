"""The tables that one server holds: made by the first client, agreed on by the others, restored, cut and watched.

Knows no transport. What pull and push mean is the native shard's business.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from monolith import _native
from monolith.core.errors import ConfigError, SchemaMismatch, ShardUnavailable
from monolith.embedding.multi_table import MultiTable, RestoreReport
from monolith.embedding.optimizers import Sgd
from monolith.embedding.snapshot import TableCut, read_manifest, spec_of
from monolith.embedding.specs import SliceSpec, TableSpec
from monolith.embedding.table import Table
from monolith.ps.agreement import check_agreement

__all__ = ["ShardTables"]

logger = logging.getLogger(__name__)


class ShardTables:
    """All tables of shard ``index`` of ``shards``. Safe to use from several threads.

    Those that a client declared are saved and restored; those that a single-table call made on the way live as long as
    the process.
    """

    def __init__(self, index: int, shards: int) -> None:
        self.index = index
        self.shards = shards
        self._lock = threading.RLock()
        self._model: MultiTable | None = None
        self._shard: _native.PsShard | None = None
        self._touched: dict[str, Table] = {}
        self._recovered_from: Path | None = None

    # --- coming to be ---

    def recover(self, path: Path) -> None:
        """Take this shard's rows from a snapshot, before any client has said what the tables are.

        The first client may still say it differently; then the snapshot is read again into its tables.
        """
        with self._lock:
            specs = [spec_of(saved) for saved in read_manifest(path)]
            self._make(specs)
            self._restore_model(path)
            self._recovered_from = path

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
                self._make(specs)
            elif self._recovered_from is None:
                check_agreement(list(self._model.specs.values()), specs)
            else:
                self._take_over(self._recovered_from, specs)
                self._recovered_from = None
            return self.shard

    def _take_over(self, path: Path, specs: Sequence[TableSpec]) -> None:
        try:
            check_agreement(list(self._required().specs.values()), specs)
        except SchemaMismatch as difference:
            logger.info("the model differs from what was saved; restoring once more difference=%s", difference)
            self._make(specs)
            self._restore_model(path)

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
        """Replace all rows by this shard's of a snapshot; see ``MultiTable.restore``."""
        with self._lock:
            self._required()
            return self._restore_model(path)

    def cut(self) -> TableCut:
        """Take the declared tables as they are now, between two pushes."""
        with self._lock:
            shard, model = self.shard, self._required()
        with shard.pause_pushes():
            return model.cut()

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
