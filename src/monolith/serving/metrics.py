"""Metrics of a model server: counts of requests and batches, and the page for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from monolith.rpc.status import Code
from monolith.serving.batching import BatchQueue
from monolith.serving.hosted_models import HostedModels
from monolith.telemetry import names
from monolith.telemetry.registry import Registry
from monolith.telemetry.text import Samples, render

__all__ = ["ServingMetrics", "metrics_page"]


class ServingMetrics:
    """Counts requests and batches in a ``Registry``. Thread safe."""

    def __init__(self) -> None:
        self.registry = Registry()
        """Holds the values."""
        self.registry.declare(
            names.SERVING_REQUEST_SECONDS,
            names.SERVING_REQUESTS_TOTAL,
            names.SERVING_ROWS_TOTAL,
            names.SERVING_BATCHES_TOTAL,
            names.SERVING_BATCH_WAIT_SECONDS_TOTAL,
            names.SERVING_DEGRADED_TOTAL,
            names.SERVING_REMOTE_CALLS_TOTAL,
            names.SERVING_LOGGED_REQUESTS_TOTAL,
        )

    def request(self, model: str, api: str, code: Code, seconds: float) -> None:
        """Count a response."""
        self.registry.export(names.SERVING_REQUESTS_TOTAL, 1, (model, api, code.name))
        self.registry.export(names.SERVING_REQUEST_SECONDS, seconds, (model, api))

    def batch(self, requests: int, rows: int, waited_s: float) -> None:
        """Count a call of a model."""
        self.registry.export(names.SERVING_BATCHES_TOTAL, 1)
        self.registry.export(names.SERVING_ROWS_TOTAL, rows)
        self.registry.export(names.SERVING_BATCH_WAIT_SECONDS_TOTAL, max(0.0, waited_s))

    def logged(self, outcome: str) -> None:
        """Count a sampled request."""
        self.registry.export(names.SERVING_LOGGED_REQUESTS_TOTAL, 1, (outcome,))

    def degraded(self, model: str) -> None:
        """Count a response that lacks rows."""
        self.registry.export(names.SERVING_DEGRADED_TOTAL, 1, (model,))

    def remote_call(self, part: str, outcome: str) -> None:
        """Count a call to the server of a sub-model."""
        self.registry.export(names.SERVING_REMOTE_CALLS_TOTAL, 1, (part, outcome))


def metrics_page(
    metrics: ServingMetrics, models: HostedModels, queue: BatchQueue, is_ready: bool, more: Iterable[Samples] = ()
) -> str:
    """Return all metrics of a server in the text form of Prometheus."""
    states = [((name, str(each.version)), int(each.state)) for name in models.names() for each in models.statuses(name)]
    return render(
        [
            (names.SERVING_UP, [((), int(is_ready))]),
            *metrics.registry.samples(),
            (names.SERVING_QUEUED_ROWS, [((), queue.queued[1])]),
            (names.SERVING_VERSION_STATE, states),
            *more,
        ]
    )
