"""``ExpirySchedule``: removes expired rows every few hours of event time.

The schedule follows the event clock of each table, never the wall clock, so a replay of old data expires rows exactly
as the live stream did. A table without an expiry is never scanned. One thread calls a schedule; pulls and pushes may
run meanwhile, because ``Table.evict`` locks one part of a table at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from monolith.core.errors import ConfigError, ExpiryRefused
from monolith.embedding.specs import NEVER_EXPIRES_DAYS, TableSpec

__all__ = ["DEFAULT_EVICT_HOURS", "ExpiringTable", "ExpirySchedule", "has_expiry"]

logger = logging.getLogger(__name__)

DEFAULT_EVICT_HOURS = 24.0
"""Event hours between two evictions: an expired row stays at most a day longer than its expiry."""


class ExpiringTable(Protocol):
    """A table in host memory, or one on a GPU."""

    spec: TableSpec

    @property
    def max_time_s(self) -> int:
        """Newest event time of an update."""
        ...

    def __len__(self) -> int: ...

    def evict(self) -> int:
        """Remove expired rows and return how many."""
        ...


def has_expiry(spec: TableSpec) -> bool:
    """Return whether rows of any slot of a table expire."""
    return min([spec.expire_days, *spec.slot_expire_days.values()]) < NEVER_EXPIRES_DAYS


class ExpirySchedule:
    """Evicts the expired rows of each table whenever its event clock has moved by ``every_hours``.

    The first call evicts immediately: a restored table may hold rows that expired before the restart. An eviction that
    the guard of ``Table.evict`` refuses is logged and repeated a period later; training continues with all rows.

    Args:
        every_hours: Event hours between two evictions of a table.
    """

    def __init__(self, every_hours: float = DEFAULT_EVICT_HOURS) -> None:
        if not every_hours > 0:
            raise ConfigError(f"every_hours is {every_hours}, expected a number above 0; None switches eviction off")
        self._every_s = every_hours * 3600
        self._evicted_at_s: dict[str, int] = {}
        self.refusals = 0
        """Evictions that the guard refused."""

    def due(self, tables: Iterable[ExpiringTable]) -> list[ExpiringTable]:
        """Return the tables whose event clock has moved by a period since their last eviction."""
        return [table for table in tables if self._is_due(table)]

    def evict(self, tables: Iterable[ExpiringTable]) -> int:
        """Remove the expired rows of all due tables; return their number."""
        rows = 0
        for table in self.due(tables):
            self._evicted_at_s[table.spec.name] = table.max_time_s
            try:
                evicted = table.evict()
            except ExpiryRefused as error:
                self.refusals += 1
                logger.error("eviction refused table=%s refusals=%d error=%s", table.spec.name, self.refusals, error)
                continue
            rows += evicted
            if evicted:
                logger.info(
                    "expired rows removed table=%s rows=%d left=%d event_time=%d",
                    table.spec.name,
                    evicted,
                    len(table),
                    table.max_time_s,
                )
        return rows

    def _is_due(self, table: ExpiringTable) -> bool:
        if not has_expiry(table.spec):
            return False
        now_s = table.max_time_s
        evicted_at_s = self._evicted_at_s.get(table.spec.name)
        if evicted_at_s is None or now_s < evicted_at_s:  # a restore may set the clock back
            return now_s > 0
        return now_s - evicted_at_s >= self._every_s
