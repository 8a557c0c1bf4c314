"""``collect_metrics``: the metrics of a run, read from the status of its groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from monolith.stream.events import END_OF_TIME
from monolith.stream.runtime.group import GroupStatus
from monolith.stream.runtime.job import JoinRun
from monolith.telemetry import names
from monolith.telemetry.names import MetricSpec

__all__ = ["collect_metrics"]

_Sample: TypeAlias = tuple[tuple[str, ...], float]


def collect_metrics(run: JoinRun, now_s: float) -> list[tuple[MetricSpec, list[_Sample]]]:
    """Return the samples of every group."""
    samples: dict[str, tuple[MetricSpec, list[_Sample]]] = {}
    for partition, group in sorted(run.groups.items()):
        label = str(partition)
        for metric, labels, value in _read_group(group.status, label, now_s):
            samples.setdefault(metric.name, (metric, []))[1].append((labels, value))
        for topic, lost in group.lost_records().items():
            metric = names.JOIN_LOST_RECORDS_TOTAL
            samples.setdefault(metric.name, (metric, []))[1].append(((label, topic), lost))
    up: list[_Sample] = [((str(partition),), float(partition in run.running)) for partition in sorted(run.partitions)]
    return [*samples.values(), (names.JOIN_GROUP_UP, up)]


def _read_group(status: GroupStatus, label: str, now_s: float) -> Iterator[tuple[MetricSpec, tuple[str, ...], float]]:
    for metric, name in _NUMBERS:
        yield metric, (label,), getattr(status, name)
    for metric, name in _COUNTERS:
        counts: Mapping[str, int] = getattr(status, name)
        for key, count in dict(counts).items():
            yield metric, (label, key), count
    yield names.JOIN_STATE_BYTES, (label, "memory"), status.memory_bytes
    yield names.JOIN_STATE_BYTES, (label, "disk"), status.spilled_bytes
    watermark_ms = status.watermark_ms
    if watermark_ms is not None and watermark_ms != END_OF_TIME:
        yield names.JOIN_WATERMARK_AGE_SECONDS, (label,), max(0.0, now_s - watermark_ms / 1000)


_NUMBERS = (
    (names.JOIN_RECORDS_TOTAL, "records"),
    (names.JOIN_ROWS_TOTAL, "rows"),
    (names.JOIN_COMMITS_TOTAL, "commits"),
    (names.JOIN_COMMIT_FAILURES_TOTAL, "commit_failures"),
    (names.JOIN_COMMIT_SECONDS_TOTAL, "commit_seconds"),
    (names.JOIN_SNAPSHOTS_TOTAL, "snapshots"),
    (names.JOIN_OPEN_IMPRESSIONS, "open_impressions"),
    (names.JOIN_HELD_ACTIONS, "held_actions"),
    (names.JOIN_IDLE_PARTITIONS, "idle_inputs"),
)
_COUNTERS = (
    (names.JOIN_DEAD_LETTERS_TOTAL, "dead_letters"),
    (names.JOIN_EVENTS_TOTAL, "counters"),
    (names.JOIN_CLOCK_JUMPS_TOTAL, "clock_jumps"),
)
