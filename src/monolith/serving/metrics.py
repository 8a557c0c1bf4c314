"""Metrics of a model server: counts of requests and batches, and the page for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from monolith.rpc.status import Code
from monolith.serving.versions.hosted_models import HostedModels
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
            names.SERVING_NATIVE_REQUESTS_TOTAL,
            names.SERVING_ACCEPT_PAUSES_TOTAL,
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
    metrics: ServingMetrics,
    models: HostedModels,
    queued_rows: int,
    is_ready: bool,
    more: Iterable[Samples] = (),
    counted: Iterable[Samples] = (),
) -> str:
    """Return all metrics of a server in the text form of Prometheus.

    Args:
        metrics: Counts of the requests that passed through Python.
        models: Served models.
        queued_rows: Rows in the queues.
        is_ready: Whether the server is ready.
        more: Further metrics.
        counted: Counts of other requests, to add to those of ``metrics``.
    """
    states = [((name, str(each.version)), int(each.state)) for name in models.names() for each in models.statuses(name)]
    return render(
        [
            (names.SERVING_UP, [((), int(is_ready))]),
            *_add_up(metrics.registry.samples(), counted),
            (names.SERVING_QUEUED_ROWS, [((), queued_rows)]),
            (names.SERVING_VERSION_STATE, states),
            *more,
        ]
    )


def _add_up(samples: Iterable[Samples], others: Iterable[Samples]) -> Iterator[Samples]:
    """Yield samples with the values of other samples of the same metric and labels added."""
    more = {metric.name: {tuple(labels): value for labels, value in values} for metric, values in others}
    for metric, values in samples:
        extra = more.get(metric.name, {})
        summed = {tuple(labels): value for labels, value in values}
        for labels, value in extra.items():
            summed[labels] = _sum(summed[labels], value) if labels in summed else value
        yield metric, list(summed.items())


def _sum(one: Any, other: Any) -> Any:
    if not isinstance(one, dict):
        return one + other
    buckets = [a + b for a, b in zip(one["buckets"], other["buckets"], strict=True)]
    return {
        **one,
        "count": one["count"] + other["count"],
        "sum_us": one["sum_us"] + other["sum_us"],
        "buckets": buckets,
    }
