"""How a server is, in the words of its health check; and the guard that keeps its tables within their memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from monolith.core.clock import Clock
from monolith.ps.tables import ShardTables

__all__ = ["Health", "HealthState", "Status"]

Status: TypeAlias = Literal["UNKNOWN", "HEALTHY", "UNHEALTHY", "DEGRADED"]

_NEARLY_FULL = 0.9


@dataclass(frozen=True, slots=True)
class HealthState:
    """A status and its reason."""

    status: Status
    message: str


class Health:
    """Watches the memory of the tables.

    Every ``check`` gives each table room to grow by what the limit leaves for all of them. So between two checks no
    table can pass the limit by itself, and past it every one refuses new rows (``CapacityExceeded``) while updates of
    those that are there go on.

    Args:
        tables: Who is watched.
        memory_limit_bytes: For all tables together; None = no limit.
        clock: Measures the uptime.
    """

    def __init__(self, tables: ShardTables, memory_limit_bytes: int | None, clock: Clock) -> None:
        self._tables = tables
        self._limit = memory_limit_bytes
        self._clock = clock
        self._started_s = clock.monotonic_s()
        self.is_draining = False
        """Whether the server has stopped taking calls."""

    @property
    def uptime_s(self) -> int:
        """Whole seconds since the start."""
        return int(self._clock.monotonic_s() - self._started_s)

    def check(self) -> None:
        """Adjust the tables' budgets to what is in use now."""
        if self._limit is not None:
            self._tables.set_budgets(max(0, self._limit - self._tables.memory_bytes))

    def of(self, component: str = "") -> HealthState:
        """Return the state of the server (no component), or of one table by its name."""
        if component and component not in {table.spec.name for table in self._tables.all}:
            return HealthState("UNKNOWN", f"there is no table {component!r}")
        if self.is_draining:
            return HealthState("UNHEALTHY", "the server is draining")
        used = self._tables.memory_bytes
        if self._limit is None or used < _NEARLY_FULL * self._limit:
            return self._of_log()
        text = f"the tables take {used} of {self._limit} bytes"
        if used < self._limit:
            return HealthState("DEGRADED", text)
        return HealthState("UNHEALTHY", f"{text}; new rows are refused: evict, or give the server more memory")

    def _of_log(self) -> HealthState:
        log = self._tables.log
        if log is None or not log.error:
            return HealthState("HEALTHY", "OK")
        return HealthState(
            "DEGRADED", f"the delta log cannot be written for {log.age_s:.0f} s: {log.error}; a crash loses that much"
        )
