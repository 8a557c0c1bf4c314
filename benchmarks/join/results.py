"""Bars of every case of the joiner, and the description of a run."""

from __future__ import annotations

import sys
from typing import TextIO

from join.workload import FEATURES, Sizes
from measure import results
from measure.machine import machine
from measure.results import Result

__all__ = ["BARS", "progress", "write"]

BARS: dict[str, tuple[float, float]] = {
    "join_python": (3.0, 10.0),
    "join_flink": (5.0, 20.0),
    "bytes_per_impression": (400.0, 200.0),
}
"""(must reach, aim) by case."""


def write(result: Result, sizes: Sizes, out: TextIO) -> None:
    """Print the line of a result."""
    env = {**machine({"numpy": "numpy", "protobuf": "protobuf"}), "features": FEATURES, "quick": sizes.quick}
    lower = frozenset({"bytes_per_impression"})
    results.write(result, out, bench="join", bars=BARS, env=env, lower_is_better=lower)


def progress(text: str) -> None:
    """Print progress to standard error."""
    print(f"bench join: {text}", file=sys.stderr, flush=True)
