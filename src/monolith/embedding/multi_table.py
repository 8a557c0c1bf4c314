"""Many tables as one store: a step's lookups and updates of all tables are one call into the engine.

Tables, learning rates and results are always in sorted-name order.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monolith import _native
from monolith.core.errors import ConfigError, SchemaMismatch
from monolith.embedding import snapshot
from monolith.embedding.arguments import Mode, as_array, as_ids, as_rows, check_known, check_step, check_time
from monolith.embedding.images import load_images, save_images
from monolith.embedding.learning_rates import ConstantRate
from monolith.embedding.serving_load import load_serving_tables
from monolith.embedding.snapshot import TableCut
from monolith.embedding.specs import TableSpec, merge_specs
from monolith.embedding.store import Ids, Manifest, Rows
from monolith.embedding.table import Table

__all__ = ["FusedRows", "MultiTable", "PlannedRows", "RestoreReport"]


_MOST_SPARE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedRows:
    """Rows of several shards and tables in one flat array; block (s, t) is number ``s * tables + t``."""

    embeddings: Rows
    """All rows, flat."""
    embedding_splits: NDArray[np.int32]
    """Floats per shard. Shapes: (shards,)."""
    id_offsets: NDArray[np.int32]
    """Where each block's ids begin. Shapes: (shards * tables + 1,)."""
    embedding_offsets: NDArray[np.int32]
    """Where each block's floats begin. Shapes: (shards * tables + 1,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """Outcome of a restore, by table name."""

    restored: tuple[str, ...]
    skipped: tuple[str, ...]
    """In the snapshot, but not among the tables."""
    missing: tuple[str, ...]
    """Among the tables, but not in the snapshot: left as they were, or empty with ``clear``."""


class _PlannedTables:
    """The tables of a plan, with the memory and the rates that are kept from step to step."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self._natives = [table._native for table in tables]
        self._specs = [table.spec for table in tables]
        self._spare = deque[_native.StepRows](maxlen=_MOST_SPARE)
        is_constant = all(isinstance(piece.rate, ConstantRate) for spec in self._specs for piece in spec.slices)
        self._constant_rates = self._rates_at(0) if is_constant else None

    def take(self) -> _native.StepRows:
        """Return memory for the rows of one step."""
        try:
            return self._spare.pop()
        except IndexError:
            return _native.StepRows(self._natives)

    def keep(self, rows: _native.StepRows) -> None:
        """Keep memory for a later step."""
        self._spare.append(rows)

    def rates_at(self, step: int) -> Sequence[NDArray[np.float32]]:
        """Return the rates of each table's slices."""
        return self._rates_at(step) if self._constant_rates is None else self._constant_rates

    def _rates_at(self, step: int) -> list[NDArray[np.float32]]:
        return [spec.learning_rates_at(step) for spec in self._specs]


class PlannedRows:
    """The rows of a plan's unique ids, and their places in the tables for one update; made by ``pull_planned``."""

    def __init__(self, tables: _PlannedTables, plan: _native.StepPlan) -> None:
        self._tables = tables
        self._native: _native.StepRows | None = tables.take()
        self.rows: Sequence[Rows] = self._native.pull(plan)
        """Per table of the plan, (U, D)."""

    def push(self, grads: Sequence[Rows], *, time_s: int = 0, step: int = 0) -> None:
        """Take one optimizer step per id, by the rates of the specs; the result is that of ``MultiTable.push``.

        The places of the rows are known, so nothing is searched again. Rows may come and go in between. The
        occurrences of the plan count as sightings.

        Args:
            grads: Per table of the plan, (U, D).
            time_s: Event time of the batch.
            step: Number of the batch.

        Raises:
            ConfigError: The rows were pushed already; nothing was applied.
        """
        step, native = check_step(step), self._native
        if native is None:  # its memory may have the rows of another step by now
            raise ConfigError(
                "the rows of this step are pushed already, expected one pull before each push; pull the plan again"
            )
        native.push(grads, self._tables.rates_at(step), check_time(time_s), step)
        self._native = None
        self._tables.keep(native)


class MultiTable:
    """Several tables with one interface; an ``EmbeddingStore`` in this process.

    >>> from monolith.embedding import Sgd, SliceSpec
    >>> specs = [TableSpec(name, [SliceSpec(2, optimizer=Sgd(learning_rate=1.0))]) for name in ("user", "item")]
    >>> tables = MultiTable(specs)
    >>> tables.apply_gradients({"user": [1]}, {"user": [[1.0, 2.0]]})
    >>> {name: rows.tolist() for name, rows in tables.lookup({"user": [1], "item": [1]}).items()}
    {'item': [[0.0, 0.0]], 'user': [[-1.0, -2.0]]}

    Args:
        specs: The tables, with different names.
        force_expiry: Let saves and evictions drop any share of the rows; see ``Table.evict``.
    """

    def __init__(self, specs: Iterable[TableSpec], *, force_expiry: bool = False) -> None:
        ordered = sorted(specs, key=lambda spec: spec.name)
        for one, other in itertools.pairwise(ordered):
            if one.name == other.name:
                raise ConfigError(f"two tables have the name {one.name!r}; names must differ")
        self._tables = {spec.name: Table(spec) for spec in ordered}
        for table in self._tables.values():
            table.force_expiry = force_expiry
        self._table_of_feature = {name: name for name in self._tables}
        self._planned: dict[tuple[str, ...], _PlannedTables] = {}

    @classmethod
    def of(cls, tables: Mapping[str, Table]) -> MultiTable:
        """Return a store over tables that are there already, by name."""
        store = cls(())
        store._tables = {name: tables[name] for name in sorted(tables)}
        store._table_of_feature = {name: name for name in store._tables}
        return store

    @classmethod
    def merged(cls, specs: Iterable[TableSpec]) -> MultiTable:
        """Make one table for all features whose specs are equal except for the name; see ``table_of``.

        Ids of features that share a table must not collide: their slots tell them apart.
        """
        groups = merge_specs(list(specs))
        tables = cls(spec for spec, _ in groups.values())
        tables._table_of_feature = {feature: spec.name for spec, features in groups.values() for feature in features}
        return tables

    # --- the tables ---

    @property
    def names(self) -> tuple[str, ...]:
        """Table names, sorted."""
        return tuple(self._tables)

    @property
    def specs(self) -> Mapping[str, TableSpec]:
        """Name to spec, in sorted-name order."""
        return {name: table.spec for name, table in self._tables.items()}

    def __getitem__(self, name: str) -> Table:
        try:
            return self._tables[name]
        except KeyError:
            raise ConfigError(f"there is no table {name!r}; the tables are {', '.join(self._tables)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def table_of(self, feature: str) -> str:
        """Return the name of the table that holds a feature's ids."""
        try:
            return self._table_of_feature[feature]
        except KeyError:
            known = ", ".join(sorted(self._table_of_feature))
            raise ConfigError(f"there is no feature {feature!r}; the features are {known}") from None

    # --- one call for all tables ---

    def lookup(self, ids: Mapping[str, ArrayLike]) -> dict[str, Rows]:
        """Return the rows of every named table's ids; see ``Table.lookup``."""
        return self._lookup({name: (keys, None) for name, keys in ids.items()}, "sum")

    def lookup_pooled(self, bags: Mapping[str, tuple[ArrayLike, ArrayLike]], mode: Mode = "sum") -> dict[str, Rows]:
        """Pool every named table's (ids, offsets); see ``Table.lookup_pooled``."""
        return self._lookup(bags, mode)

    def _lookup(self, bags: Mapping[str, tuple[ArrayLike, ArrayLike | None]], mode: Mode) -> dict[str, Rows]:
        jobs, results = [], {}
        for name in sorted(bags):
            job, results[name] = self[name]._lookup_job(*bags[name], mode)
            jobs.append(job)
        _native.lookup_all(jobs)
        return results

    def gather(self, plan: _native.StepPlan, tables: Sequence[str], outputs: Sequence[Rows]) -> None:
        """Look up the ids of a plan and fill the layouts: ``lookup`` and ``StepPlan.pool`` in one step.

        Args:
            plan: The ids of a batch.
            tables: The plan's tables, in its order.
            outputs: One array (rows, width) per output of the plan's layouts.
        """
        plan.gather([self[name]._native for name in tables], outputs)

    def pull_planned(self, plan: _native.StepPlan, tables: Sequence[str]) -> PlannedRows:
        """Return the rows of a plan's unique ids, with their places for one ``PlannedRows.push``.

        A pull that no push follows is ``pull``, which is faster alone.

        Args:
            plan: The ids of a batch.
            tables: The plan's tables, in its order.
        """
        key = tuple(tables)
        planned = self._planned.get(key)
        if planned is None:
            planned = self._planned[key] = _PlannedTables([self[name] for name in tables])
        return PlannedRows(planned, plan)

    def apply_gradients(
        self,
        ids: Mapping[str, ArrayLike],
        grads: Mapping[str, ArrayLike],
        learning_rates: Mapping[str, ArrayLike] | None = None,
        time_s: int = 0,
        step: int = 0,
        dedup: bool = True,
        *,
        counts: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        """Take one optimizer step per id of every named table; see ``Table.apply_gradients``."""
        _check_same_names("grads", ids, grads)
        check_known("learning_rates", learning_rates, self._tables)
        check_known("counts", counts, self._tables)
        jobs = [
            self[name]._plain_gradient_job(
                ids[name], grads[name], (learning_rates or {}).get(name), time_s, step, dedup, (counts or {}).get(name)
            )
            for name in sorted(ids)
        ]
        _native.apply_all(jobs)

    def apply_pooled_gradients(
        self,
        bags: Mapping[str, tuple[ArrayLike, ArrayLike]],
        grads: Mapping[str, ArrayLike],
        mode: Mode = "sum",
        learning_rates: Mapping[str, ArrayLike] | None = None,
        time_s: int = 0,
        step: int = 0,
    ) -> None:
        """Take one optimizer step per id from the gradients of ``lookup_pooled``'s results."""
        _check_same_names("grads", bags, grads)
        check_known("learning_rates", learning_rates, self._tables)
        jobs = [
            self[name]._gradient_job(*bags[name], grads[name], mode, (learning_rates or {}).get(name), time_s, step)
            for name in sorted(bags)
        ]
        _native.apply_all(jobs)

    def reinitialize(self, table: str, ids: ArrayLike) -> NDArray[np.int8]:
        """Like ``Table.reinitialize``; -1 for every id when there is no such table."""
        if table not in self._tables:
            return np.full(len(as_ids(table, ids)), -1, np.int8)
        return self[table].reinitialize(ids)

    def delete(self, ids: Mapping[str, ArrayLike]) -> dict[str, NDArray[np.bool_]]:
        """Remove rows by table; return for each id whether it had a row.

        The removals are changes like any other: the delta log and its followers get them.

        Raises:
            ConfigError: There is no table of a name, or ids have another form; nothing was removed.
        """
        jobs = {name: (self[name], as_ids(name, given)) for name, given in ids.items()}
        existed = {}
        for name, (table, keys) in jobs.items():
            existed[name] = table.contains(keys)
            table.delete(keys)
        return existed

    def evict(self, now_s: int | None = None, *, force: bool = False) -> int:
        """Remove the expired rows of all tables, each by its own clock unless ``now_s`` is given.

        Raises:
            ExpiryRefused: As ``Table.evict``, for any table; nothing was changed.
        """
        if not force:
            for table in self._tables.values():
                table.check_expiry(now_s)
        return sum(table.evict(now_s, force=True) for table in self._tables.values())

    @property
    def memory_bytes(self) -> int:
        """Bytes of all tables."""
        return sum(table.memory_bytes for table in self._tables.values())

    # --- flat blocks of several shards and all tables, for synchronous training ---

    def fused_lookup(self, ids: ArrayLike, fused_slot_size: ArrayLike, num_shards: int) -> FusedRows:
        """Look up blocks of ids that come shard by shard, and table by table within a shard.

        Args:
            ids: All ids, flat.
            fused_slot_size: Ids in each block; block (s, t) is number ``s * tables + t``, tables in name order.
            num_shards: Shards the ids come from.
        """
        keys, id_offsets, float_offsets = self._blocks(ids, fused_slot_size, num_shards)
        flat = np.empty(float_offsets[-1], np.float32)
        jobs = []
        for block, table in enumerate(list(self._tables.values()) * num_shards):
            rows = flat[float_offsets[block] : float_offsets[block + 1]].reshape(-1, table.dim)
            part = keys[id_offsets[block] : id_offsets[block + 1]]
            jobs.append(_native.LookupJob(table._native, part, None, _native.Pooling.none, 0, rows))
        _native.lookup_all(jobs)
        return FusedRows(
            embeddings=flat,
            embedding_splits=np.diff(float_offsets[:: len(self._tables)]).astype(np.int32),
            id_offsets=id_offsets.astype(np.int32),
            embedding_offsets=float_offsets.astype(np.int32),
        )

    def fused_apply_gradients(
        self,
        ids: ArrayLike,
        fused_slot_size: ArrayLike,
        grads: ArrayLike,
        num_shards: int,
        learning_rates: Mapping[str, ArrayLike] | None = None,
        time_s: int = 0,
        step: int = 0,
        dedup: bool = False,
    ) -> None:
        """Apply the gradients of ``fused_lookup``'s embeddings.

        The shards' gradients of one id are not summed: it takes one step per shard, in shard order.
        """
        keys, id_offsets, float_offsets = self._blocks(ids, fused_slot_size, num_shards)
        check_known("learning_rates", learning_rates, self._tables)
        flat = as_rows("fused", "gradients", np.reshape(as_array(grads), (-1, 1)), float_offsets[-1], 1)
        jobs = []
        for block, (name, table) in enumerate(list(self._tables.items()) * num_shards):
            rows = flat[float_offsets[block] : float_offsets[block + 1]].reshape(-1, table.dim)
            part = keys[id_offsets[block] : id_offsets[block + 1]]
            rates = (learning_rates or {}).get(name)
            jobs.append(table._plain_gradient_job(part, rows, rates, check_time(time_s), check_step(step), dedup, None))
        _native.apply_all(jobs)

    def _blocks(
        self, ids: ArrayLike, fused_slot_size: ArrayLike, num_shards: int
    ) -> tuple[Ids, NDArray[np.int64], NDArray[np.int64]]:
        keys = as_ids("fused", ids)
        sizes = as_array(fused_slot_size)
        blocks = num_shards * len(self._tables)
        if sizes.shape != (blocks,) or sizes.dtype.kind not in "iu" or (sizes.size and sizes.min() < 0):
            raise ConfigError(
                f"fused_slot_size is {sizes.tolist()}; give {blocks} counts: {num_shards} shards x tables"
            )
        if sizes.sum() != len(keys):
            raise ConfigError(f"fused_slot_size adds up to {sizes.sum()}, but there are {len(keys)} ids")
        dims = np.array([table.dim for table in self._tables.values()] * num_shards, np.int64)
        id_offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        float_offsets = np.concatenate([[0], np.cumsum(sizes * dims, dtype=np.int64)])
        return keys, id_offsets, float_offsets

    # --- EmbeddingStore ---

    def pull(self, ids: Mapping[str, Ids]) -> Mapping[str, Rows]:
        """Return one row per id; see ``EmbeddingStore.pull``."""
        return self.lookup(ids)

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
        """Take one optimizer step per id; see ``EmbeddingStore.push``."""
        self.apply_gradients(ids, grads, learning_rates, time_s, step, counts=counts)

    def snapshot(self, path: str | PathLike[str]) -> Manifest:
        """Write all tables to ``path``, whole or not at all; see ``EmbeddingStore.snapshot``."""
        return self.save(path)

    # --- files ---

    def save(self, path: str | PathLike[str], shards: int | None = None) -> Manifest:
        """Write all tables as of now to the folder ``path``, in ``shards`` files each."""
        return self.cut().write(path, shards)

    def cut(self) -> TableCut:
        """Return a cut of all tables, to be written while training continues; wait for the end of an earlier cut."""
        return TableCut(list(self._tables.values()))

    def restore(
        self, path: str | PathLike[str], clear: bool = True, *, shard: tuple[int, int] = (0, 1)
    ) -> RestoreReport:
        """Load the tables that the snapshot and this store have in common, by name or older name.

        Every file of these tables is checked before the first row changes.

        Args:
            path: The snapshot's folder.
            clear: Whether all present rows go first, those of missing tables too.
            shard: (index, count): take only ids with ``uint64(id) % count == index``.
        """
        saved = snapshot.read_manifest(path)
        found = {name: snapshot.find_table(saved, table.spec) for name, table in self._tables.items()}
        pairs = [(self[name], entry) for name, entry in found.items() if entry is not None]
        for table, entry in pairs:
            snapshot.check_shard(table, entry, shard)
        for table, entry in pairs:
            snapshot.check(table, entry)
        if clear:
            for table in self._tables.values():
                table.clear()
        for table, entry in pairs:
            snapshot.restore_saved(table, entry, clear=False, shard=shard)
        used = {entry.name for _, entry in pairs}
        return RestoreReport(
            restored=tuple(name for name, entry in found.items() if entry is not None),
            skipped=tuple(sorted(entry.name for entry in saved if entry.name not in used)),
            missing=tuple(name for name, entry in found.items() if entry is None),
        )

    def to_serving(
        self, *, skip_zero_rows: bool = False, full_precision: bool = False, shard: tuple[int, int] = (0, 1)
    ) -> MultiTable:
        """Return copies for serving; see ``Table.to_serving``."""
        tables = MultiTable(())
        for name, table in self._tables.items():
            tables._tables[name] = table.to_serving(
                skip_zero_rows=skip_zero_rows, full_precision=full_precision, shard=shard
            )
        tables._table_of_feature = dict(self._table_of_feature)
        return tables

    def emptied(self) -> MultiTable:
        """Return tables of the same kind, training or serving, without rows."""
        tables = MultiTable(())
        for name, table in self._tables.items():
            tables._tables[name] = table.emptied()
        tables._table_of_feature = dict(self._table_of_feature)
        return tables

    def copy_to(self, serving: MultiTable) -> None:
        """Copy the rows of training tables into serving tables of the same names, in the form that those have.

        Raises:
            SchemaMismatch: The names or widths differ.
        """
        ours, theirs = ({name: table.dim for name, table in each._tables.items()} for each in (self, serving))
        if ours != theirs:
            raise SchemaMismatch(f"the tables are {ours}, those to copy to {theirs}; they must be the same")
        for name, table in self._tables.items():
            table._native.copy_to(serving[name]._native)

    @classmethod
    def load(
        cls, path: str | PathLike[str], *, shard: tuple[int, int] = (0, 1), without: str | None = None
    ) -> MultiTable:
        """Make all tables of a snapshot, with the specs that were saved.

        Args:
            path: The snapshot's folder.
            shard: (index, count): take only ids with ``uint64(id) % count == index``.
            without: How the names of tables begin that are left out.
        """
        tables = cls(())
        for entry in sorted(snapshot.read_manifest(path), key=lambda entry: entry.name):
            if without is not None and entry.name.startswith(without):
                continue
            tables._tables[entry.name] = Table._load_saved(entry, shard=shard)
            tables._table_of_feature[entry.name] = entry.name
        return tables

    @classmethod
    def load_serving(
        cls,
        path: str | PathLike[str],
        *,
        specs: Iterable[TableSpec] | None = None,
        names: Sequence[str] | None = None,
        shard: tuple[int, int] = (0, 1),
        skip_zero_rows: bool = False,
        full_precision: bool = False,
        generation: int | None = None,
    ) -> MultiTable:
        """Make serving tables of a snapshot, without its training rows in memory.

        Args:
            path: The snapshot's folder.
            specs: Specs of the model, whose tables may be missing in the snapshot; None = the specs that were saved.
            names: Tables to load; None = all.
            shard: (index, count): take only ids with ``uint64(id) % count == index``.
            skip_zero_rows: As ``Table.to_serving``.
            full_precision: As ``Table.to_serving``.
            generation: Generation that the snapshot must have; None = any.

        Raises:
            SnapshotCorrupt: A file is missing or altered, or the snapshot has another generation.
            SchemaMismatch: The rows do not fit the specs.
        """
        tables = cls(())
        for table in load_serving_tables(
            path,
            specs=specs,
            names=names,
            shard=shard,
            skip_zero_rows=skip_zero_rows,
            full_precision=full_precision,
            generation=generation,
        ):
            tables._tables[table.spec.name] = table
            tables._table_of_feature[table.spec.name] = table.spec.name
        return tables

    def save_images(self, path: str | PathLike[str]) -> None:
        """Write serving tables to a new folder, as files that ``load_images`` maps."""
        save_images(list(self._tables.values()), path)

    @classmethod
    def load_images(cls, path: str | PathLike[str], *, in_memory: bool = False) -> MultiTable:
        """Map the tables that ``save_images`` wrote, with rows on disk; see ``images.load_images``."""
        tables = cls(())
        for table in sorted(load_images(path, in_memory=in_memory), key=lambda table: table.spec.name):
            tables._tables[table.spec.name] = table
            tables._table_of_feature[table.spec.name] = table.spec.name
        return tables


def _check_same_names(what: str, ids: Mapping[str, object], others: Mapping[str, object]) -> None:
    if ids.keys() != others.keys():
        differing = ", ".join(sorted(ids.keys() ^ others.keys()))
        raise ConfigError(f"ids and {what} must name the same tables; these are in one only: {differing}")
