"""What a model server counts, and its page for Prometheus."""

from __future__ import annotations

import bisect
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from monolith.core import metrics
from monolith.core.metrics import Metric
from monolith.ps.call_figures import BOUNDS_US
from monolith.ps.metrics import render
from monolith.serving.batching import BatchQueue
from monolith.serving.hosted_models import HostedModels
from monolith.serving.status import Code

__all__ = ["Figures", "metrics_page"]

_Samples = tuple[Metric, Sequence[tuple[Sequence[str], Any]]]


class Figures:
    """Counts requests and batches. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, str, str], int] = defaultdict(int)
        self._seconds: dict[tuple[str, str], dict[str, Any]] = {}
        self._logged: dict[str, int] = defaultdict(int)
        self._degraded: dict[str, int] = defaultdict(int)
        self._remote: dict[tuple[str, str], int] = defaultdict(int)
        self._batches = self._rows = 0
        self._waited_s = 0.0

    def request(self, model: str, api: str, code: Code, seconds: float) -> None:
        """Count an answer."""
        us = seconds * 1e6
        with self._lock:
            self._requests[model, api, code.name] += 1
            figures = self._seconds.get((model, api))
            if figures is None:
                figures = self._seconds[model, api] = {
                    "count": 0,
                    "sum_us": 0,
                    "bounds_us": BOUNDS_US,
                    "buckets": [0] * (len(BOUNDS_US) + 1),
                }
            figures["count"] += 1
            figures["sum_us"] += int(us)
            figures["buckets"][bisect.bisect_left(BOUNDS_US, us)] += 1

    def batch(self, requests: int, rows: int, waited_s: float) -> None:
        """Count a call of a model."""
        with self._lock:
            self._batches += 1
            self._rows += rows
            self._waited_s += waited_s

    def logged(self, outcome: str) -> None:
        """Count a sampled request."""
        with self._lock:
            self._logged[outcome] += 1

    def degraded(self, model: str) -> None:
        """Count an answer that lacks rows."""
        with self._lock:
            self._degraded[model] += 1

    def remote_call(self, part: str, outcome: str) -> None:
        """Count a call to the server of a sub-model."""
        with self._lock:
            self._remote[part, outcome] += 1

    def samples(self) -> list[_Samples]:
        """Return the numbers of now."""
        with self._lock:
            seconds = [(key, {**each, "buckets": list(each["buckets"])}) for key, each in self._seconds.items()]
            return [
                (metrics.SERVING_REQUEST_SECONDS, seconds),
                (metrics.SERVING_REQUESTS_TOTAL, list(self._requests.items())),
                (metrics.SERVING_ROWS_TOTAL, [((), self._rows)]),
                (metrics.SERVING_BATCHES_TOTAL, [((), self._batches)]),
                (metrics.SERVING_BATCH_WAIT_SECONDS_TOTAL, [((), self._waited_s)]),
                (metrics.SERVING_DEGRADED_TOTAL, [((name,), count) for name, count in self._degraded.items()]),
                (metrics.SERVING_REMOTE_CALLS_TOTAL, list(self._remote.items())),
                (metrics.SERVING_LOGGED_REQUESTS_TOTAL, [((name,), count) for name, count in self._logged.items()]),
            ]


def metrics_page(figures: Figures, models: HostedModels, queue: BatchQueue, is_ready: bool) -> str:
    """Return everything in Prometheus' text form."""

    def every() -> Iterator[_Samples]:
        yield metrics.SERVING_UP, [((), int(is_ready))]
        yield from figures.samples()
        yield metrics.SERVING_QUEUED_ROWS, [((), queue.queued[1])]
        states = [
            ((name, str(each.version)), int(each.state)) for name in models.names() for each in models.statuses(name)
        ]
        yield metrics.SERVING_VERSION_STATE, states

    return render(every())
