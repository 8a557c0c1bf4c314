"""What a model server counts, and its page for Prometheus."""

from __future__ import annotations

import bisect
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from monolith.core import metrics
from monolith.core.metrics import Metric
from monolith.ps.call_figures import BOUNDS_US
from monolith.ps.metrics import render
from monolith.serving.batching import BatchQueue
from monolith.serving.hosted_models import HostedModels
from monolith.serving.status import Code

__all__ = ["Figures", "Histogram", "Samples", "metrics_page"]

Samples: TypeAlias = tuple[Metric, Sequence[tuple[Sequence[str], Any]]]
"""A metric, and per sample the values of its labels and the number."""


class Histogram:
    """Counts seconds. Whoever uses it keeps others out.

    Args:
        bounds_us: Upper ends of its buckets in microseconds; one more holds the rest.
    """

    def __init__(self, bounds_us: Sequence[int] = BOUNDS_US) -> None:
        self._bounds_us = bounds_us
        self._count = self._sum_us = 0
        self._buckets = [0] * (len(bounds_us) + 1)

    def add(self, seconds: float) -> None:
        """Count one."""
        us = seconds * 1e6
        self._count += 1
        self._sum_us += int(us)
        self._buckets[bisect.bisect_left(self._bounds_us, us)] += 1

    def figures(self) -> dict[str, Any]:
        """Return what is rendered."""
        return {
            "count": self._count,
            "sum_us": self._sum_us,
            "bounds_us": self._bounds_us,
            "buckets": list(self._buckets),
        }


class Figures:
    """Counts requests and batches. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, str, str], int] = defaultdict(int)
        self._seconds: dict[tuple[str, str], Histogram] = defaultdict(Histogram)
        self._logged: dict[str, int] = defaultdict(int)
        self._degraded: dict[str, int] = defaultdict(int)
        self._remote: dict[tuple[str, str], int] = defaultdict(int)
        self._batches = self._rows = 0
        self._waited_s = 0.0

    def request(self, model: str, api: str, code: Code, seconds: float) -> None:
        """Count an answer."""
        with self._lock:
            self._requests[model, api, code.name] += 1
            self._seconds[model, api].add(seconds)

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

    def samples(self) -> list[Samples]:
        """Return the numbers of now."""
        with self._lock:
            seconds = [(key, each.figures()) for key, each in self._seconds.items()]
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


def metrics_page(
    figures: Figures, models: HostedModels, queue: BatchQueue, is_ready: bool, more: Iterable[Samples] = ()
) -> str:
    """Return everything in Prometheus' text form."""

    def every() -> Iterator[Samples]:
        yield metrics.SERVING_UP, [((), int(is_ready))]
        yield from figures.samples()
        yield metrics.SERVING_QUEUED_ROWS, [((), queue.queued[1])]
        states = [
            ((name, str(each.version)), int(each.state)) for name in models.names() for each in models.statuses(name)
        ]
        yield metrics.SERVING_VERSION_STATE, states
        yield from more

    return render(every())
