"""Metrics of all event log writers of a process, by topic.

``LogWriter`` registers itself, and a metrics page collects ``log_writer_samples``. Counts of closed writers stay, so
that counters never fall. Thread safe.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

from monolith.telemetry import names
from monolith.telemetry.names import MetricSpec

if TYPE_CHECKING:
    from monolith.data.sources.event_log.writer import LogWriter

__all__ = ["log_writer_samples", "register_writer", "unregister_writer"]

_Values: TypeAlias = dict[MetricSpec, float]

_COUNTERS = (
    names.LOG_APPENDED_RECORDS_TOTAL,
    names.LOG_APPEND_BYTES_TOTAL,
    names.LOG_APPEND_FAILURES_TOTAL,
    names.LOG_FSYNCS_TOTAL,
    names.LOG_FSYNC_SECONDS_TOTAL,
    names.LOG_TORN_TAILS_TOTAL,
)
_GAUGES = (names.LOG_WAITING_BYTES, names.LOG_FAILED_PARTITIONS)

_lock = threading.Lock()
_open: weakref.WeakSet[LogWriter] = weakref.WeakSet()
_closed: dict[str, _Values] = defaultdict(dict)


def register_writer(writer: LogWriter) -> None:
    """Add a writer to the metrics of the process."""
    with _lock:
        _open.add(writer)


def unregister_writer(writer: LogWriter) -> None:
    """Keep the counts of a writer that closes. A second call does nothing."""
    with _lock:
        if writer not in _open:
            return
        _open.discard(writer)
        total = _closed[writer.topic.name]
        for metric, value in _read(writer).items():
            if metric in _COUNTERS:
                total[metric] = total.get(metric, 0.0) + value


def log_writer_samples() -> list[tuple[MetricSpec, list[tuple[tuple[str, ...], float]]]]:
    """Return the samples of every metric; empty without writers."""
    totals: dict[str, _Values] = {}
    with _lock:
        for topic, values in _closed.items():
            totals[topic] = dict(values)
        for writer in _open:
            total = totals.setdefault(writer.topic.name, {})
            for metric, value in _read(writer).items():
                total[metric] = total.get(metric, 0.0) + value
    return [
        (metric, [((topic,), values.get(metric, 0.0)) for topic, values in sorted(totals.items())])
        for metric in (*_COUNTERS, *_GAUGES)
        if totals
    ]


def _read(writer: LogWriter) -> _Values:
    counts = [partition.counts() for partition in writer.partitions]
    return {
        names.LOG_APPENDED_RECORDS_TOTAL: writer.written_records,
        names.LOG_APPEND_BYTES_TOTAL: writer.written_bytes,
        names.LOG_APPEND_FAILURES_TOTAL: writer.refused_appends,
        names.LOG_FSYNCS_TOTAL: sum(each.syncs for each in counts),
        names.LOG_FSYNC_SECONDS_TOTAL: sum(each.sync_us for each in counts) / 1e6,
        names.LOG_TORN_TAILS_TOTAL: sum(each.torn_tails for each in counts),
        names.LOG_WAITING_BYTES: writer.waiting_bytes,
        names.LOG_FAILED_PARTITIONS: sum(partition.has_failed for partition in writer.partitions),
    }
