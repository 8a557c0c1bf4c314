"""Health of a server, and enforcement of its memory limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from monolith.core.clock import Clock
from monolith.embedding.memory_limit import FullTableLog, MemoryLimit
from monolith.embedding.specs import WhenFull
from monolith.ps.tables import ShardTables

__all__ = ["NEARLY_FULL", "ServerHealth", "HealthState", "Status"]

Status: TypeAlias = Literal["UNKNOWN", "HEALTHY", "UNHEALTHY", "DEGRADED"]

NEARLY_FULL = "tables use "
"""How the message of a server begins whose memory is nearly used up. The status alone may have another reason."""

_NEARLY_FULL = 0.9


@dataclass(frozen=True, slots=True)
class HealthState:
    """A status and its reason."""

    status: Status
    message: str


class ServerHealth:
    """Reports health and enforces the memory limit of the tables.

    Every ``check`` limits the growth of each table to the memory that is left. Between two checks no single table
    passes the limit. A full table refuses new rows (``CapacityExceeded``), or evicts its least recently updated rows;
    it updates existing rows in both cases.

    Args:
        tables: Tables to watch.
        memory_limit_bytes: Limit of all tables together; None = no limit.
        clock: Measures the uptime.
        when_full: Reaction of a full table; None = the reaction that the spec of each table names.
    """

    def __init__(
        self, tables: ShardTables, memory_limit_bytes: int | None, clock: Clock, when_full: WhenFull | None = None
    ) -> None:
        self._tables = tables
        self.limit = MemoryLimit(memory_limit_bytes, when_full)
        self._evictions = FullTableLog(clock)
        self._clock = clock
        self._started_s = clock.monotonic_s()
        self.is_draining = False
        """Whether the server refuses calls."""

    @property
    def uptime_s(self) -> int:
        """Whole seconds since the start."""
        return int(self._clock.monotonic_s() - self._started_s)

    def check(self) -> None:
        """Adjust the budgets of the tables to the memory in use, and log the rows that full tables evicted."""
        tables = self._tables.all
        self.limit.apply(tables)
        self._evictions.report(tables)

    def of(self, component: str = "") -> HealthState:
        """Return the state of the server; with ``component``, of the table with that name."""
        if component and component not in {table.spec.name for table in self._tables.all}:
            return HealthState("UNKNOWN", f"component is {component!r}, which is not a table")
        if self.is_draining:
            return HealthState("UNHEALTHY", "the server is draining")
        used = self._tables.memory_bytes
        limit = self.limit.limit_bytes
        if limit is None or used < _NEARLY_FULL * limit or self.limit.evicts(self._tables.all):
            return self._of_log()
        text = f"{NEARLY_FULL}{used} of {limit} bytes"
        if used < limit:
            return HealthState("DEGRADED", text)
        return HealthState("UNHEALTHY", f"{text}; new rows are refused: evict rows, or raise the memory limit")

    def _of_log(self) -> HealthState:
        log = self._tables.log
        if log is None or not log.error:
            return HealthState("HEALTHY", "OK")
        return HealthState(
            "DEGRADED", f"delta log not written for {log.age_s:.0f} s: {log.error}; a crash loses that much"
        )
