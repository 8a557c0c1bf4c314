"""``read_page``: the metrics page of a process, as numbers. ``Buckets``: a histogram between two reads, and quantiles.

Both are functions of the text form of Prometheus, so the demonstration sees its processes as an operator does.
"""

from __future__ import annotations

import http.client
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

__all__ = ["Buckets", "Page", "read_page"]

_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Page:
    """Samples of one page: name, labels and value each."""

    samples: tuple[tuple[str, Mapping[str, str], float], ...] = ()

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of a name that have these labels; 0 without any."""
        return math.fsum(self._values(name, labels))

    def newest(self, name: str, **labels: str) -> float | None:
        """Return the largest sample of a name; None without any."""
        return max(self._values(name, labels), default=None)

    def buckets(self, name: str, **labels: str) -> Buckets:
        """Return the histogram of a name, summed over all samples with these labels."""
        counts: dict[float, float] = {}
        for sample, its_labels, value in self.samples:
            if sample == f"{name}_bucket" and labels.items() <= its_labels.items():
                bound = float(its_labels["le"])
                counts[bound] = counts.get(bound, 0.0) + value
        return Buckets(counts, self.total(f"{name}_sum", **labels))

    def _values(self, name: str, labels: Mapping[str, str]) -> list[float]:
        return [
            value
            for sample, its_labels, value in self.samples
            if sample == name and labels.items() <= its_labels.items()
        ]


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram: cumulated counts by upper bound in seconds, and the sum of all observations.

    >>> Buckets({0.1: 5, 1.0: 9, math.inf: 10}, 4.0).quantile(0.5)
    0.1
    """

    counts: Mapping[float, float] = field(default_factory=dict)
    sum_s: float = 0.0

    def since(self, before: Buckets) -> Self:
        """Return the observations after an earlier read of the same process."""
        counts = {bound: count - before.counts.get(bound, 0.0) for bound, count in self.counts.items()}
        return type(self)(counts, self.sum_s - before.sum_s)

    @property
    def count(self) -> int:
        """Number of observations."""
        return int(max(self.counts.values(), default=0))

    @property
    def mean(self) -> float:
        """Mean in seconds; NaN without observations."""
        return self.sum_s / self.count if self.count else math.nan

    def quantile(self, share: float) -> float:
        """Return the upper bound of the bucket that holds a quantile, so it is never understated; NaN without any."""
        if not self.count:
            return math.nan
        return next(bound for bound in sorted(self.counts) if self.counts[bound] >= share * self.count)


def read_page(address: str) -> Page | None:
    """Return the metrics of ``host:port``; None if the process does not answer."""
    try:
        with build_opener(ProxyHandler({})).open(f"http://{address}/metrics", timeout=_TIMEOUT_S) as answer:
            return _parse(answer.read().decode())
    except (URLError, OSError, http.client.HTTPException, ValueError):
        return None


def _parse(text: str) -> Page:
    matches = (_LINE.match(line) for line in text.splitlines() if not line.startswith("#"))
    return Page(tuple((each[1], dict(_LABEL.findall(each[2] or "")), float(each[3])) for each in matches if each))
