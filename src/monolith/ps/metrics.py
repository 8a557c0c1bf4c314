"""A server's numbers for Prometheus to fetch, and whether it is well, over plain HTTP.

Writes Prometheus' text form by itself: the numbers are all there when they are asked for, so nothing has to be counted
a second time. Names and meanings are those of :mod:`monolith.core.metrics`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from monolith.core import metrics
from monolith.core.errors import ClusterError, ShardUnavailable
from monolith.core.metrics import Metric
from monolith.ps.health import Health
from monolith.ps.service import PsService
from monolith.ps.tables import ShardTables

__all__ = ["MetricsPage", "render"]

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_Sample = tuple[Sequence[str], float | Mapping[str, Any]]


def render(samples: Iterable[tuple[Metric, Iterable[_Sample]]]) -> str:
    """Return the text form: per metric (label values, number), or (label values, figures of a call).

    >>> print(render([(metrics.TABLE_ROWS, [(("user",), 7)])]), end="")
    # HELP monolith_table_rows Rows that the table holds.
    # TYPE monolith_table_rows gauge
    monolith_table_rows{table="user"} 7
    """
    return "".join(f"{line}\n" for metric, found in samples for line in _lines(metric, found))


def _lines(metric: Metric, samples: Iterable[_Sample]) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.help}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for values, number in samples:
        labels = [*zip(metric.labels, values, strict=True)]
        if not isinstance(number, Mapping):
            yield f"{metric.name}{_spelled(labels)} {number}"
            continue
        bounds = [*(f"{bound / 1e6:g}" for bound in number["bounds_us"]), "+Inf"]
        for bound, count in zip(bounds, itertools.accumulate(number["buckets"]), strict=True):
            yield f"{metric.name}_bucket{_spelled([*labels, ('le', bound)])} {count}"
        yield f"{metric.name}_sum{_spelled(labels)} {number['sum_us'] / 1e6:.6f}"
        yield f"{metric.name}_count{_spelled(labels)} {number['count']}"


def _spelled(labels: Sequence[tuple[str, str]]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class MetricsPage:
    """Serves /metrics and /healthz until it is closed.

    Raises:
        ClusterError: The port is taken.
    """

    def __init__(self, service: PsService, tables: ShardTables, health: Health, host: str, port: int) -> None:
        self._service = service
        self._tables = tables
        self._health = health
        page = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10  # a caller that says nothing does not hold a thread for ever

            def do_GET(self) -> None:
                status, text = page._answer(self.path)
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", _CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass  # one line per scrape helps nobody

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise ClusterError(
                f"metrics cannot listen on {host}:{port} ({error.strerror}); give a free port"
            ) from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="ps-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, path: str) -> tuple[int, str]:
        if path == "/metrics":
            return 200, render(self._samples())
        if path == "/healthz":
            state = self._health.of()
            return 503 if state.status == "UNHEALTHY" else 200, f"{state.status} {state.message}\n"
        return 404, "there are /metrics and /healthz\n"

    def _samples(self) -> Iterator[tuple[Metric, list[_Sample]]]:
        yield metrics.PS_UP, [((), int(self._health.of().status != "UNHEALTHY"))]
        tables = self._tables.all
        for metric, number_of in (
            (metrics.TABLE_ROWS, len),
            (metrics.TABLE_BYTES, lambda table: table.memory_bytes),
            (metrics.TABLE_CLOCK_SECONDS, lambda table: table.max_time_s),
            (metrics.TABLE_EVICTED_ROWS_TOTAL, lambda table: table.stats.rows_evicted),
            (metrics.TABLE_NOT_ADMITTED_IDS_TOTAL, lambda table: table.stats.ids_filtered),
            (metrics.TABLE_NONFINITE_GRADIENTS_TOTAL, lambda table: table.stats.nan_rows_skipped),
        ):
            yield metric, [((table.spec.name,), number_of(table)) for table in tables]
        if (log := self._tables.log) is not None:
            yield metrics.PS_DELTA_SEQUENCE, [((), log.position.sequence if log.position else 0)]
            yield metrics.PS_DELTA_AGE_SECONDS, [((), round(log.age_s, 3))]
            yield metrics.PS_DELTA_FAILURES_TOTAL, [((), log.failures)]
        calls = self._service.calls()
        yield metrics.PS_CALL_SECONDS, [((call,), figures) for call, figures in calls.items()]
        yield metrics.PS_CALL_ERRORS_TOTAL, [((call,), figures["errors"]) for call, figures in calls.items()]
        try:
            native = self._tables.shard.stats()
        except ShardUnavailable:
            return
        by_table = native["tables"].items()
        kinds = (("pull", "ids_pulled"), ("push", "ids_pushed"))
        yield metrics.PS_IDS_TOTAL, [((name, call), found[key]) for name, found in by_table for call, key in kinds]
        yield metrics.PS_REPEATED_PUSHES_TOTAL, [((), native["repeated_pushes"])]
        yield metrics.PS_LATE_CALLS_TOTAL, [((), native["late_calls"])]
        yield metrics.PS_CLIENTS, [((), native["clients"])]
