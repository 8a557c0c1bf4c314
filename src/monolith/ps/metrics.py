"""Metrics page of a parameter server: /metrics and /healthz.

Every number is counted by its owner already (tables, service, native shard, delta log); the page reads it on request.
"""

from __future__ import annotations

from collections.abc import Iterator

from monolith.core.errors import ShardUnavailable
from monolith.ps.health import ServerHealth
from monolith.ps.service import PsService
from monolith.ps.tables import ShardTables
from monolith.telemetry import names
from monolith.telemetry.page import MetricsPage
from monolith.telemetry.registry import Registry
from monolith.telemetry.text import Samples

__all__ = ["serve_metrics"]


def serve_metrics(service: PsService, tables: ShardTables, health: ServerHealth, host: str, port: int) -> MetricsPage:
    """Serve the metrics and the health of a server until the page is closed.

    Raises:
        ClusterError: The port is taken.
    """
    registry = Registry()
    registry.compute(names.PS_UP, lambda: int(health.of().status != "UNHEALTHY"))
    registry.collect(lambda: _samples(service, tables))

    def is_healthy() -> tuple[bool, str]:
        state = health.of()
        return state.status != "UNHEALTHY", f"{state.status} {state.message}"

    return MetricsPage(registry.text, is_healthy, host=host, port=port)


def _samples(service: PsService, tables: ShardTables) -> Iterator[Samples]:
    for metric, number_of in (
        (names.TABLE_ROWS, len),
        (names.TABLE_BYTES, lambda table: table.memory_bytes),
        (names.TABLE_CLOCK_SECONDS, lambda table: table.max_time_s),
        (names.TABLE_EVICTED_ROWS_TOTAL, lambda table: table.stats.rows_evicted),
        (names.TABLE_FULL_EVICTED_ROWS_TOTAL, lambda table: table.stats.rows_evicted_full),
        (names.TABLE_NOT_ADMITTED_IDS_TOTAL, lambda table: table.stats.ids_filtered),
        (names.TABLE_NONFINITE_GRADIENTS_TOTAL, lambda table: table.stats.nan_rows_skipped),
    ):
        yield metric, [((table.spec.name,), number_of(table)) for table in tables.all]
    if (log := tables.log) is not None:
        yield names.PS_DELTA_SEQUENCE, [((), log.position.sequence if log.position else 0)]
        yield names.PS_DELTA_AGE_SECONDS, [((), round(log.age_s, 3))]
        yield names.PS_DELTA_FAILURES_TOTAL, [((), log.failures)]
    calls = service.calls()
    yield names.PS_CALL_SECONDS, [((call,), durations) for call, durations in calls.items()]
    yield names.PS_CALL_ERRORS_TOTAL, [((call,), durations["errors"]) for call, durations in calls.items()]
    try:
        native = tables.shard.stats()
    except ShardUnavailable:
        return
    by_table = native["tables"].items()
    kinds = (("pull", "ids_pulled"), ("push", "ids_pushed"))
    yield names.PS_IDS_TOTAL, [((name, call), counts[key]) for name, counts in by_table for call, key in kinds]
    yield names.PS_REPEATED_PUSHES_TOTAL, [((), native["repeated_pushes"])]
    yield names.PS_LATE_CALLS_TOTAL, [((), native["late_calls"])]
    yield names.PS_CLIENTS, [((), native["clients"])]
