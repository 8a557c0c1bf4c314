"""Export the metrics of the data's source: records, lag and losses of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.telemetry.names import MetricSpec
from monolith.training.hooks.base import Hook

if TYPE_CHECKING:
    from monolith.sync.push_sender import Export

__all__ = ["SourceMetricsHook"]


class SourceMetricsHook(Hook):
    """The ``MetricSink`` of the sources of a job: passes metrics on to the page of the run, if there is one."""

    def __init__(self) -> None:
        self.export: Export | None = None
        """Receives the metrics; set before the run."""

    def __call__(self, metric: MetricSpec, value: float, labels: tuple[str, ...]) -> None:
        """Pass one metric on. Call it from any thread."""
        if self.export is not None:
            self.export(metric, value, labels)
