"""Loads tables of a snapshot in the form that servers use, one shard at a time.

Training rows become serving rows block by block while the files are read. A process therefore holds the serving rows of
its shard and one block per thread, never the training rows with their optimizer state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike

from monolith import _native
from monolith.core.errors import ConfigError, SchemaMismatch, SnapshotCorrupt
from monolith.embedding import snapshot
from monolith.embedding.specs import TableSpec
from monolith.embedding.table import Table

__all__ = ["load_serving_tables", "select_tables"]


def load_serving_tables(
    path: str | PathLike[str],
    *,
    specs: Iterable[TableSpec] | None = None,
    names: Sequence[str] | None = None,
    shard: tuple[int, int] = (0, 1),
    skip_zero_rows: bool = False,
    full_precision: bool = False,
    generation: int | None = None,
) -> list[Table]:
    """Make the serving tables of one shard of a snapshot; see ``MultiTable.load_serving``."""
    index, count = shard
    if not 0 <= index < count:
        raise ConfigError(f"shard is {shard}, expected (index, count) with index from 0 to count - 1")
    saved = snapshot.read_manifest(path)
    if generation is not None and any(entry.generation != generation for entry in saved):
        raise SnapshotCorrupt(
            f"the snapshot '{path}' has generation {saved[0].generation}, expected {generation}: it was replaced; "
            "export the model again"
        )
    tables = []
    for spec, entry in select_tables(saved, specs, names):
        is_serving = entry is not None and entry.is_serving
        served = spec if is_serving else spec.for_serving(full_precision)
        table = Table._serving(served, skip_zero_rows=skip_zero_rows)
        if entry is not None and is_serving:
            snapshot.restore_saved(table, entry, clear=False, shard=shard)
        elif entry is not None:
            training = Table(spec)
            snapshot.check_layout(training, entry)
            _native.convert_snapshot(training._native, table._native, entry.generation, entry.parts, index, count)
            table._native.force_clock(entry.max_time_s)
        tables.append(table)
    return tables


def select_tables(
    saved: Sequence[snapshot.SavedTable], specs: Iterable[TableSpec] | None, names: Sequence[str] | None
) -> list[tuple[TableSpec, snapshot.SavedTable | None]]:
    """Return the specs of tables, sorted by name, each with its saved table; None for a table without one.

    Args:
        saved: Tables of a snapshot.
        specs: Specs of a model; None = those that were saved.
        names: Names of wanted tables; None = all.

    Raises:
        SchemaMismatch: The snapshot has no table of a name.
    """
    if specs is None:
        pairs: list[tuple[TableSpec, snapshot.SavedTable | None]] = [
            (snapshot.spec_of(entry), entry) for entry in saved if names is None or entry.name in names
        ]
    else:
        pairs = [(spec, snapshot.find_table(saved, spec)) for spec in specs if names is None or spec.name in names]
    known = {spec.name for spec, _ in pairs}
    if names is not None and (missing := sorted(set(names) - known)):
        raise SchemaMismatch(f"the snapshot has no table {missing[0]!r}; it has {', '.join(sorted(known))}")
    return sorted(pairs, key=lambda pair: pair[0].name)
