"""``TableMemoryHook``: limits the memory of tables in this process, and logs the rows that full tables evict.

Parameter servers limit their tables in their own process; see ``ServerConfig.memory_limit_bytes``.
"""

from __future__ import annotations

from typing_extensions import override

from monolith.embedding import Table
from monolith.embedding.memory_limit import FullTableLog, MemoryLimit
from monolith.training.hooks.base import Hook
from monolith.training.hooks.expiry import local_tables
from monolith.training.run import Run, StepResult

__all__ = ["TableMemoryHook"]

_EVERY_STEPS = 10
"""Steps between two checks. Steps, not seconds, so that equal runs evict equal rows."""


class TableMemoryHook(Hook):
    """Keeps the tables of this process within a common memory limit.

    Args:
        limit: The limit, and the reaction of a full table.
    """

    def __init__(self, limit: MemoryLimit) -> None:
        self._limit = limit
        self._tables: list[Table] = []
        self._log: FullTableLog | None = None

    @override
    def on_start(self, run: Run) -> None:
        tables = local_tables(run.store)
        self._tables = [] if tables is None else [tables[name] for name in tables]
        self._log = FullTableLog(run.clock)
        self._limit.apply(self._tables)

    @override
    def after_step(self, run: Run, result: StepResult) -> None:
        if result.step % _EVERY_STEPS == 0:
            self._check()

    @override
    def on_end(self, run: Run, error: BaseException | None) -> None:
        self._check()

    def _check(self) -> None:
        self._limit.apply(self._tables)
        if self._log is not None:
            self._log.report(self._tables)
