"""Metrics of a run for Prometheus to fetch; names and meanings are those of :mod:`monolith.telemetry.names`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from monolith.core.errors import ClusterError, ConfigError
from monolith.telemetry.names import (
    CHECKPOINT_AGE_SECONDS,
    TABLE_BYTES,
    TABLE_CLOCK_SECONDS,
    TABLE_EVICTED_ROWS_TOTAL,
    TABLE_FULL_EVICTED_ROWS_TOTAL,
    TABLE_NONFINITE_GRADIENTS_TOTAL,
    TABLE_NOT_ADMITTED_IDS_TOTAL,
    TABLE_ROWS,
    TRAIN_EVENT_TIME_SECONDS,
    TRAIN_EVENT_TIMES_CLAMPED_TOTAL,
    TRAIN_HEAD,
    TRAIN_IDS_TOTAL,
    TRAIN_LOSS,
    TRAIN_SAMPLES_TOTAL,
    TRAIN_STEP,
    TRAIN_STEP_SECONDS,
    TRAIN_STEPS_TOTAL,
    MetricSpec,
)
from monolith.telemetry.page import MetricsPage
from monolith.telemetry.registry import Registry
from monolith.training.hooks.base import Hook
from monolith.training.metrics.batch_fields import on_host
from monolith.training.metrics.run_metrics import RunMetrics
from monolith.training.metrics.table_sizes import TableSize, table_sizes
from monolith.training.run import Run, StepResult

__all__ = ["PrometheusHook"]

logger = logging.getLogger(__name__)

_TABLE_COUNTS: tuple[tuple[MetricSpec, Callable[[TableSize], int]], ...] = (
    (TABLE_EVICTED_ROWS_TOTAL, lambda size: size.evicted_rows),
    (TABLE_FULL_EVICTED_ROWS_TOTAL, lambda size: size.full_evicted_rows),
    (TABLE_NOT_ADMITTED_IDS_TOTAL, lambda size: size.not_admitted_ids),
    (TABLE_NONFINITE_GRADIENTS_TOTAL, lambda size: size.nonfinite_gradients),
)


class PrometheusHook(Hook):
    """Exports steps, samples, ids, loss, heads, step times, tables, event time and checkpoint age of a run.

    The counts are exact after every step. Metrics of heads and tables are brought up to date every ``every_steps``
    steps, and at the end.

    Args:
        metrics: The run's metrics, which someone else updates.
        port: Where to serve; 0 = any that is free. The address is logged.
        host: The address to listen on.
        every_steps: Steps between two looks at heads and tables.
        registry: Where to export to; None = one of its own. Give the same one to a source to serve its metrics too.
    """

    def __init__(
        self,
        metrics: RunMetrics,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        every_steps: int = 100,
        registry: Registry | None = None,
    ) -> None:
        if every_steps < 1:
            raise ConfigError(f"every_steps must be at least 1, got {every_steps}")
        self._metrics = metrics
        self._port = port
        self._host = host
        self._every_steps = every_steps
        self.registry = registry or Registry()
        """Where everything is exported to."""
        self._server: MetricsPage | None = None
        self._counted: dict[tuple[str, str], int] = {}
        self._newest_event_s = 0
        self._clamped = 0
        self._saved_at_s = 0.0

    @property
    def port(self) -> int | None:
        """Where it is served now, None when no run is under way."""
        return None if self._server is None else self._server.port

    def on_start(self, run: Run) -> None:
        """Begin to serve."""
        clock = run.clock
        self._saved_at_s = clock.monotonic_s()
        self._counted = {}
        self._clamped = 0
        self.registry.compute(CHECKPOINT_AGE_SECONDS, lambda: clock.monotonic_s() - self._saved_at_s)
        self.registry.export(TRAIN_STEP, run.step)
        self._look(run)
        self._server = _serve(self.registry, self._host, self._port)
        logger.info("metrics served url=http://%s:%d/metrics", self._host, self._server.port)

    def after_step(self, run: Run, result: StepResult) -> None:
        """Count the step."""
        export = self.registry.export
        export(TRAIN_STEP, result.step)
        export(TRAIN_STEPS_TOTAL, 1)
        export(TRAIN_SAMPLES_TOTAL, result.samples)
        export(TRAIN_IDS_TOTAL, result.ids)
        export(TRAIN_LOSS, result.loss)
        export(TRAIN_STEP_SECONDS, result.seconds)
        self._newest_event_s = max(self._newest_event_s, int(on_host(result.batch.event_time_s).max(initial=0)))
        if self._newest_event_s:
            export(TRAIN_EVENT_TIME_SECONDS, self._newest_event_s)
        clamped, self._clamped = self._clamped, run.clamped_event_times
        export(TRAIN_EVENT_TIMES_CLAMPED_TOTAL, self._clamped - clamped)
        if result.step % self._every_steps == 0:
            self._look(run)

    def after_save(self, run: Run, path: Path) -> None:
        """Begin anew to count the checkpoint's age."""
        self._saved_at_s = run.clock.monotonic_s()

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """Stop serving; the numbers stay in the registry."""
        if self._server is None:
            return
        self._look(run)
        self._server.close()
        self._server = None

    def _look(self, run: Run) -> None:
        for name, value in self._metrics.window().items():
            head, _, metric = name.rpartition("/")
            if head:
                self.registry.export(TRAIN_HEAD, value, (head, metric))
        for table, size in table_sizes(run.store).items():
            self.registry.export(TABLE_ROWS, size.rows, (table,))
            self.registry.export(TABLE_BYTES, size.bytes, (table,))
            self.registry.export(TABLE_CLOCK_SECONDS, size.clock_s, (table,))
            self._count(table, size)

    def _count(self, table: str, size: TableSize) -> None:
        for metric, count_of in _TABLE_COUNTS:
            count, key = count_of(size), (metric.name, table)
            # Tables that were there before the run begin at what they have; one that was made anew begins at 0.
            self.registry.export(metric, max(0, count - self._counted.get(key, count)), (table,))
            self._counted[key] = count


def _serve(registry: Registry, host: str, port: int) -> MetricsPage:
    try:
        return MetricsPage(registry.text, host=host, port=port)
    except ClusterError as exc:
        raise ConfigError(
            f"metrics_port {port} on {host} cannot be served ({exc}); choose another, or 0 for any"
        ) from exc
