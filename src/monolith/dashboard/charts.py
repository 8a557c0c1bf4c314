"""Series of the charts, derived from two scrapes of one target.

A gauge is shown as it is, a counter as its rate, a histogram by quantiles of the observations between two scrapes.
``CHARTS`` lists the charts; a chart without a series is not shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from monolith.dashboard.samples import Sample, Samples

__all__ = ["CHARTS", "ROLES", "Chart", "Measure", "compute_series", "find_role", "quantile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One metric of a chart."""

    metric: str
    kind: Literal["gauge", "rate", "quantiles"] = "gauge"
    labels: tuple[str, ...] = ()
    """Labels that distinguish series; samples that differ only in other labels are added, or merged."""
    name: str = ""
    """First word of the series' names."""
    where: tuple[str, str] | None = None
    """A label and the value that it must have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart of the page."""

    id: str
    title: str
    unit: Literal["", "s", "bytes", "per s"]
    measures: tuple[Measure, ...]
    help: str
    """One sentence for the reader of the chart."""


CHARTS: tuple[Chart, ...] = (
    Chart(
        id="auc",
        title="AUC",
        unit="",
        help="Quality of the newest predictions, scored before the model learns from their rows.",
        measures=(
            Measure(metric="monolith_train_head", labels=("head",), name="real-time", where=("metric", "auc")),
            Measure(metric="monolith_demo_auc", labels=("kind",)),
        ),
    ),
    Chart(
        id="loss",
        title="Training loss",
        unit="",
        help="Loss per example over the last window.",
        measures=(Measure(metric="monolith_train_loss", name="loss"),),
    ),
    Chart(
        id="freshness",
        title="Event to servable",
        unit="s",
        help="Time from an event until a server can answer with its update.",
        measures=(Measure(metric="monolith_event_to_servable_seconds", kind="quantiles", labels=("model",)),),
    ),
    Chart(
        id="stages",
        title="Stages of freshness",
        unit="s",
        help="Time of a row in each stage from its event to the server.",
        measures=(Measure(metric="monolith_event_stage_seconds", kind="quantiles", labels=("stage",)),),
    ),
    Chart(
        id="throughput",
        title="Throughput",
        unit="per s",
        help="Rows trained, rows joined and requests answered in a second.",
        measures=(
            Measure(metric="monolith_train_samples_total", kind="rate", name="rows trained"),
            Measure(metric="monolith_join_rows_total", kind="rate", name="rows joined"),
            Measure(metric="monolith_serving_requests_total", kind="rate", labels=("model",), name="requests"),
            Measure(metric="monolith_serving_rows_total", kind="rate", labels=("model",), name="rows scored"),
        ),
    ),
    Chart(
        id="latency",
        title="Request time",
        unit="s",
        help="Time from the arrival of a request to its answer.",
        measures=(Measure(metric="monolith_serving_request_seconds", kind="quantiles", labels=("model", "api")),),
    ),
    Chart(
        id="rows",
        title="Rows of tables",
        unit="",
        help="Ids that have a row.",
        measures=(Measure(metric="monolith_table_rows", labels=("table",)),),
    ),
    Chart(
        id="memory",
        title="Memory of tables",
        unit="bytes",
        help="Memory of rows and index.",
        measures=(Measure(metric="monolith_table_bytes", labels=("table",)),),
    ),
    Chart(
        id="lag",
        title="Age and lag",
        unit="s",
        help="Age of the newest publish, of the applied cut, and of the next unread record.",
        measures=(
            Measure(metric="monolith_publish_age_seconds", name="publish"),
            Measure(metric="monolith_sync_lag_seconds", labels=("model",), name="cut"),
            Measure(metric="monolith_log_lag_seconds", labels=("topic",), name="log"),
            Measure(metric="monolith_join_watermark_age_seconds", labels=("group",), name="watermark"),
        ),
    ),
    Chart(
        id="unread",
        title="Unread records",
        unit="",
        help="Records between the position of a reader and the end of its partitions.",
        measures=(
            Measure(metric="monolith_kafka_lag_records", labels=("topic",), name="Kafka"),
            Measure(metric="monolith_log_lag_records", labels=("topic",), name="log"),
        ),
    ),
)

_QUANTILES = (0.5, 0.99)
ROLES = (
    ("monolith_train_step", "trainer"),
    ("monolith_join_group_up", "joiner"),
    ("monolith_ps_up", "parameter server"),
    ("monolith_serving_up", "model server"),
    ("monolith_agent_leader", "agent"),
    ("monolith_demo_auc", "visitors"),
)
"""A metric that only one kind of process exports, and the name of that kind."""


def find_role(samples: Samples) -> str:
    """Return the kind of process that exports the samples."""
    return next((role for name, role in ROLES if name in samples), "process")


def compute_series(chart: Chart, before: Samples, now: Samples, elapsed_s: float) -> dict[str, float]:
    """Return the newest value of each series of a chart, by name; series without a value are left out."""
    found: dict[str, float] = {}
    for measure in chart.measures:
        for labels, value in _values(measure, before, now, elapsed_s):
            if math.isfinite(value):
                found[" ".join(part for part in (measure.name, *labels) if part) or chart.title] = value
    return found


def _values(
    measure: Measure, before: Samples, now: Samples, elapsed_s: float
) -> Iterator[tuple[tuple[str, ...], float]]:
    if measure.kind == "quantiles":
        name = f"{measure.metric}_bucket"
        old, new = _groups(measure, before.get(name, ())), _groups(measure, now.get(name, ()))
        for labels, samples in new.items():
            counts = _increase(_buckets(old.get(labels, [])), _buckets(samples))
            for share in _QUANTILES:
                yield (*labels, f"p{share * 100:g}"), quantile(counts, share)
        return
    new = _groups(measure, now.get(measure.metric, ()))
    old = _groups(measure, before.get(measure.metric, ()))
    for labels, samples in new.items():
        total = _total(samples)
        if measure.kind == "gauge":
            yield labels, total
        elif labels in old and elapsed_s > 0:
            earlier = _total(old[labels])
            # A counter that fell is one of a restarted process.
            yield labels, (total - earlier if total >= earlier else total) / elapsed_s


def _groups(measure: Measure, samples: Sequence[Sample]) -> dict[tuple[str, ...], list[Sample]]:
    groups: dict[tuple[str, ...], list[Sample]] = {}
    for sample in samples:
        if measure.where is None or sample.labels.get(measure.where[0]) == measure.where[1]:
            groups.setdefault(tuple(sample.labels.get(label, "") for label in measure.labels), []).append(sample)
    return groups


def _total(samples: Sequence[Sample]) -> float:
    """Return the sum of the values; NaN where it does not exist, as for inf - inf."""
    try:
        return math.fsum(sample.value for sample in samples)
    except (OverflowError, ValueError):
        return math.nan


def _buckets(samples: Sequence[Sample]) -> dict[float, float]:
    """Return upper bounds and cumulated counts; samples with an invalid bound are left out."""
    buckets: dict[float, float] = {}
    for sample in samples:
        try:
            bound = float(sample.labels.get("le", "inf"))
        except ValueError:
            continue
        buckets[bound] = buckets.get(bound, 0.0) + sample.value
    return buckets


def _increase(before: dict[float, float], now: dict[float, float]) -> dict[float, float]:
    if before and max(before.values()) > max(now.values(), default=0.0):
        return now  # of a restarted process
    return {bound: count - before.get(bound, 0.0) for bound, count in now.items()}


def quantile(buckets: dict[float, float], share: float) -> float:
    """Return the upper bound of the bucket that holds a quantile; NaN without observations.

    >>> quantile({0.1: 5, 1.0: 9, float("inf"): 10}, 0.5), quantile({0.1: 5, 1.0: 9, float("inf"): 10}, 0.99)
    (0.1, 1.0)
    """
    bounds = sorted(buckets)
    total = max(buckets.values(), default=0.0)
    if total <= 0:
        return math.nan
    for bound in bounds:
        if buckets[bound] >= share * total and math.isfinite(bound):
            return bound
    return max((bound for bound in bounds if math.isfinite(bound)), default=math.nan)
