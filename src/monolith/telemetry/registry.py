"""``Registry``: the metrics of one process, counted here and rendered on request.

Values live in plain dictionaries under one lock, which each call holds for about a microsecond. Numbers that another
object counts already are not counted twice: ``compute`` and ``collect`` read them when the page is fetched, in the
thread that renders it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from monolith.core.errors import ConfigError
from monolith.telemetry.histogram import Histogram
from monolith.telemetry.names import MetricSpec
from monolith.telemetry.text import Samples, render

__all__ = ["Registry"]

Labels = tuple[str, ...]


class Registry:
    """Metrics by their description, separate from those of any other registry. Thread safe.

    ``export`` has the signature that sources take as ``metrics=``. Metrics are rendered in the order of their first
    use; those of ``collect`` come last.

    >>> from monolith.telemetry import names
    >>> registry = Registry()
    >>> registry.export(names.TRAIN_STEPS_TOTAL, 2)
    >>> registry.text().splitlines()[-1]
    'monolith_train_steps_total 2'
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._families: dict[str, tuple[MetricSpec, dict[Labels, Any]]] = {}
        self._computed: dict[str, Callable[[], float]] = {}
        self._sources: list[Callable[[], Iterable[Samples]]] = []

    def declare(self, *metrics: MetricSpec) -> None:
        """Show these metrics before their first value; a counter without labels starts at 0."""
        with self._lock:
            for metric in metrics:
                children = self._children(metric)
                if metric.kind == "counter" and not metric.labels:
                    children.setdefault((), 0)

    def export(self, metric: MetricSpec, value: float, labels: Labels = ()) -> None:
        """Add to a counter, set a gauge, or observe one duration of a histogram.

        Args:
            metric: The description; its ``kind`` decides.
            value: Increment of a counter, new value of a gauge, seconds of a histogram.
            labels: Values of ``metric.labels``, in that order.

        Raises:
            ConfigError: The number of labels differs, or a counter would fall.
        """
        if len(labels) != len(metric.labels):
            raise ConfigError(f"{metric.name} got labels {labels!r}, expected values of {metric.labels!r}")
        with self._lock:
            children = self._children(metric)
            if metric.kind == "gauge":
                children[labels] = value
            elif metric.kind == "histogram":
                if (histogram := children.get(labels)) is None:
                    histogram = children[labels] = Histogram(metric.bounds_us)
                histogram.add(value)
            else:
                if value < 0:
                    raise ConfigError(f"counter {metric.name} got {value!r}, expected at least 0")
                children[labels] = children.get(labels, 0) + value

    def compute(self, metric: MetricSpec, function: Callable[[], float]) -> None:
        """Call ``function`` for the value of a gauge whenever the metrics are read; it must be thread safe."""
        with self._lock:
            self._children(metric)
            self._computed[metric.name] = function

    def collect(self, source: Callable[[], Iterable[Samples]]) -> None:
        """Call ``source`` for more samples whenever the metrics are read; it must be thread safe."""
        with self._lock:
            self._sources.append(source)

    def value(self, metric: MetricSpec, labels: Labels = ()) -> Any:
        """Return the value of a counter or gauge, or the snapshot of a histogram; None before its first value."""
        with self._lock:
            _, children = self._families.get(metric.name, (metric, {}))
            value = children.get(labels)
            return _snapshot(value)

    def samples(self) -> list[Samples]:
        """Return all metrics as of now."""
        with self._lock:
            counted: list[Samples] = [
                (metric, [(labels, _snapshot(value)) for labels, value in children.items()])
                for metric, children in self._families.values()
            ]
            computed = dict(self._computed)
            sources = list(self._sources)
        # Without the lock: these functions take locks of their owners.
        own = [
            (metric, [((), computed[metric.name]())]) if metric.name in computed else (metric, values)
            for metric, values in counted
        ]
        return [*own, *(samples for source in sources for samples in source())]

    def text(self) -> str:
        """Return all metrics in the text form of Prometheus."""
        return render(self.samples())

    def _children(self, metric: MetricSpec) -> dict[Labels, Any]:
        """Return the values of a metric by labels; the caller holds the lock."""
        if (family := self._families.get(metric.name)) is None:
            family = self._families[metric.name] = (metric, {})
        return family[1]


def _snapshot(value: Any) -> Any:
    return value.snapshot() if isinstance(value, Histogram) else value
