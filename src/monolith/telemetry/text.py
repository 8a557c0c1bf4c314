"""The text form of metrics that Prometheus reads (version 0.0.4)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from monolith.telemetry.names import MetricSpec

__all__ = ["CONTENT_TYPE", "Samples", "render"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Samples: TypeAlias = tuple[MetricSpec, Iterable[tuple[Sequence[str], Any]]]
"""A metric, and per sample the values of its labels and a number, or the snapshot of a histogram."""


def render(samples: Iterable[Samples]) -> str:
    """Return the text form of samples.

    >>> from monolith.telemetry.names import TABLE_ROWS
    >>> print(render([(TABLE_ROWS, [(("user",), 7)])]), end="")
    # HELP monolith_table_rows Rows that the table holds.
    # TYPE monolith_table_rows gauge
    monolith_table_rows{table="user"} 7
    """
    return "".join(f"{line}\n" for metric, values in samples for line in _lines(metric, values))


def _lines(metric: MetricSpec, samples: Iterable[tuple[Sequence[str], Any]]) -> Iterator[str]:
    yield f"# HELP {metric.name} {_escape(metric.help)}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for values, value in samples:
        labels = [*zip(metric.labels, values, strict=True)]
        if not isinstance(value, Mapping):
            yield f"{metric.name}{_format_labels(labels)} {_format_number(value)}"
            continue
        bounds = [*(f"{bound / 1e6:g}" for bound in value["bounds_us"]), "+Inf"]
        for bound, count in zip(bounds, itertools.accumulate(value["buckets"]), strict=True):
            yield f"{metric.name}_bucket{_format_labels([*labels, ('le', bound)])} {count}"
        yield f"{metric.name}_sum{_format_labels(labels)} {value['sum_us'] / 1e6:.6f}"
        yield f"{metric.name}_count{_format_labels(labels)} {value['count']}"


def _format_labels(labels: Sequence[tuple[str, str]]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value, quote=True)}"' for name, value in labels) + "}"


def _escape(text: str, quote: bool = False) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quote else text


def _format_number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))
    number = float(value)  # also of NumPy
    if math.isnan(number):
        return "NaN"
    return repr(number) if math.isfinite(number) else ("+Inf" if number > 0 else "-Inf")
