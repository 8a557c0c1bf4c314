"""Sizes of the tables of a store."""

from __future__ import annotations

from dataclasses import dataclass

from monolith.embedding import EmbeddingStore, MultiTable

__all__ = ["TableSize", "table_sizes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """One table, now; the last four count since it was made."""

    rows: int
    bytes: int
    clock_s: int
    """The table's event clock."""
    evicted_rows: int
    full_evicted_rows: int
    not_admitted_ids: int
    nonfinite_gradients: int


def table_sizes(store: EmbeddingStore) -> dict[str, TableSize]:
    """Return the size of each table by name; nothing for a store whose rows another process keeps and exports."""
    tables: object = store
    if not isinstance(tables, MultiTable):
        return {}
    sizes = {}
    for name in tables:
        table = tables[name]
        stats = table.stats
        sizes[name] = TableSize(
            rows=len(table),
            bytes=table.memory_bytes,
            clock_s=table.max_time_s,
            evicted_rows=stats.rows_evicted,
            full_evicted_rows=stats.rows_evicted_full,
            not_admitted_ids=stats.ids_filtered,
            nonfinite_gradients=stats.nan_rows_skipped,
        )
    return sizes
