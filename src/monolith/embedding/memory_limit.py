"""``MemoryLimit``: one memory limit for several tables, and the reaction of a full table.

A parameter server and a run with its tables in the same process apply the limit between two calls or steps. A full
table refuses new ids, or evicts its least recently updated rows; the engine does either within the call itself.
``FullTableLog`` logs the evicted rows. One thread calls both; pulls and pushes may run meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from monolith.core.clock import Clock
from monolith.core.errors import ConfigError
from monolith.embedding.specs import WhenFull
from monolith.embedding.table import Table

__all__ = ["FullTableLog", "MemoryLimit"]

logger = logging.getLogger(__name__)

_RESERVED_SHARE = 16
"""Share of the limit that evicting tables leave free, so that an empty table still gets its first rows."""
_LOG_INTERVAL_S = 60.0


class MemoryLimit:
    """Limits the memory of several tables together.

    Each ``apply`` limits the growth of every table to the memory that is left, and to the table's own ``max_bytes``.
    Between two calls no single table passes the limit.

    Args:
        limit_bytes: Limit of all tables together; None = only the limit of each table.
        when_full: Reaction of every table; None = the reaction that the spec of each table names.
    """

    def __init__(self, limit_bytes: int | None, when_full: WhenFull | None = None) -> None:
        if limit_bytes is not None and limit_bytes < 1:
            raise ConfigError(f"limit_bytes is {limit_bytes!r}, expected at least 1; None = no limit")
        self.limit_bytes = limit_bytes
        self._when_full = when_full

    def evicts(self, tables: Iterable[Table]) -> bool:
        """Return whether every table makes room for new ids by itself."""
        return all(self._reaction(table) == "evict_oldest" for table in tables)

    def _reaction(self, table: Table) -> WhenFull:
        return self._when_full or table.spec.when_full

    def apply(self, tables: Sequence[Table]) -> None:
        """Adjust the budgets of the tables to the memory in use."""
        if self.limit_bytes is None:
            if self._when_full is not None:
                for table in tables:
                    table.limit_memory(table.spec.max_bytes, self._when_full)
            return
        used = [table.memory_bytes for table in tables]
        for table, own in zip(tables, used, strict=True):
            when_full = self._reaction(table)
            if when_full == "refuse":
                allowed = own + max(0, self.limit_bytes - sum(used))
            else:
                reserve = self.limit_bytes // _RESERVED_SHARE
                allowed = max(own + max(0, self.limit_bytes - reserve - sum(used)), reserve // len(tables))
            table.limit_memory(max(1, min(allowed, table.spec.max_bytes or allowed)), when_full)


class FullTableLog:
    """Logs the rows that full tables evict: the first eviction of a table immediately, later ones once a minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged: dict[str, tuple[int, float]] = {}

    def report(self, tables: Iterable[Table]) -> None:
        """Log the rows that each table has evicted since its last log line."""
        for table in tables:
            evicted = table.stats.rows_evicted_full
            logged, logged_at_s = self._logged.get(table.spec.name, (0, -_LOG_INTERVAL_S))
            now_s = self._clock.monotonic_s()
            if evicted == logged or (logged and now_s - logged_at_s < _LOG_INTERVAL_S):
                continue
            self._logged[table.spec.name] = (evicted, now_s)
            logger.warning(
                "table full, least recently updated rows evicted table=%s rows=%d left=%d bytes=%d",
                table.spec.name,
                evicted - logged,
                len(table),
                table.memory_bytes,
            )
