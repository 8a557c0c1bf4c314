"""``ExpiryHook``: removes expired rows of tables in this process while the model trains.

Parameter servers evict by the same schedule in their own process; see ``ServerConfig.evict_every_hours``.
"""

from __future__ import annotations

from typing_extensions import override

from monolith.embedding import EmbeddingStore, MultiTable
from monolith.embedding.expiry import ExpiringTable, ExpirySchedule, has_expiry
from monolith.nn import GpuStore
from monolith.training.hooks.base import Hook
from monolith.training.run import Run, StepResult

__all__ = ["ExpiryHook", "local_tables"]


class ExpiryHook(Hook):
    """Evicts expired rows between two steps, every ``every_hours`` of event time. Does nothing without an expiry.

    The removals are changes like any other: the delta log, checkpoints and followers get them.

    Args:
        every_hours: Event hours between two evictions of a table.
    """

    def __init__(self, every_hours: float) -> None:
        self._schedule = ExpirySchedule(every_hours)
        self._tables: list[ExpiringTable] = []

    @override
    def on_start(self, run: Run) -> None:
        tables = run.store if isinstance(run.store, GpuStore) else local_tables(run.store)
        self._tables = [] if tables is None else [tables[name] for name in tables if has_expiry(tables[name].spec)]

    @override
    def after_step(self, run: Run, result: StepResult) -> None:
        if not self._schedule.due(self._tables):
            return
        with run.between_steps():  # late updates of finished steps renew rows
            self._schedule.evict(self._tables)


def local_tables(store: EmbeddingStore) -> MultiTable | None:
    """Return the tables that this process holds: all of them, or those of one rank; None for remote rows."""
    tables = store if isinstance(store, MultiTable) else getattr(store, "tables", None)
    return tables if isinstance(tables, MultiTable) else None
