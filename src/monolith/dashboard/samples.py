"""Parses metrics in the text form of Prometheus (version 0.0.4)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["Sample", "Samples", "parse_samples"]

_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


@dataclass(frozen=True, slots=True)
class Sample:
    """One number of a metric."""

    name: str
    labels: Mapping[str, str]
    value: float


Samples = Mapping[str, list[Sample]]
"""Samples by name."""


def parse_samples(text: str) -> dict[str, list[Sample]]:
    r"""Return the samples of a page; lines that are not samples are left out.

    >>> parse_samples('# TYPE up gauge\nup{job="a"} 1\nrows 2.5e3\nbroken {')
    {'up': [Sample(name='up', labels={'job': 'a'}, value=1.0)], 'rows': [Sample(name='rows', labels={}, value=2500.0)]}
    """
    found: dict[str, list[Sample]] = {}
    for sample in _parse_lines(text):
        found.setdefault(sample.name, []).append(sample)
    return found


def _parse_lines(text: str) -> Iterator[Sample]:
    for line in text.split("\n"):  # other line separators may be in labels
        match = None if line.startswith("#") else _LINE.fullmatch(line)
        if match is None:
            continue
        name, labels, number = match.groups()
        try:
            yield Sample(name, _parse_labels(labels or ""), float(number))
        except ValueError:
            continue


def _parse_labels(text: str) -> dict[str, str]:
    labels, end = {}, 0
    while end < len(text):
        match = _LABEL.match(text, end)
        if match is None:
            raise ValueError(text)
        labels[match.group(1)] = re.sub(r"\\.", lambda each: _ESCAPES.get(each.group(), each.group()), match.group(2))
        end = match.end()
    return labels
