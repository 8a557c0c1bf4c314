"""The bars of every case of freshness, and what its lines say about the run."""

from __future__ import annotations

import sys
from typing import TextIO

from freshness.workload import DIM, Sizes
from measure import results
from measure.machine import machine
from measure.results import Result

__all__ = ["BARS", "progress", "write"]

BARS: dict[str, tuple[float, float]] = {
    "update_to_predict_p99_s": (2.0, 1.5),
    "update_to_predict_p99_s_100ms": (2.0, 0.5),
    "local_update_to_predict_p99_s": (2.0, 1.5),
    "local_update_to_predict_p99_s_100ms": (2.0, 0.5),
    "delta_bytes_share": (0.02, 0.012),
    "event_to_servable_p99_s": (2.5, 2.0),
    "event_to_servable_p99_s_100ms": (2.5, 1.0),
}
"""(must reach, aim) by case."""

_PACKAGES = {"numpy": "numpy", "torch": "torch", "onnxruntime": "onnxruntime"}


def write(result: Result, sizes: Sizes, out: TextIO) -> None:
    """Print the line of a result."""
    env = {**machine(_PACKAGES), "rows": sizes.rows, "batch": sizes.batch, "dim": DIM, "quick": sizes.quick}
    results.write(result, out, bench="freshness", bars=BARS, env=env, lower_is_better=frozenset(BARS))


def progress(text: str) -> None:
    """Tell the person who waits."""
    print(f"bench freshness: {text}", file=sys.stderr, flush=True)
