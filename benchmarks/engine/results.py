"""The bars of every case of the engine, and what its lines say about the run."""

from __future__ import annotations

import platform
import sys
from typing import Any, TextIO

from engine.workload import Sizes
from measure import results
from measure.machine import machine
from measure.results import Result, compare, skipped

__all__ = ["BARS", "Result", "compare", "environment", "progress", "skipped", "write"]

BARS: dict[str, tuple[float, float]] = {
    "step_zipf_fbgemm": (3.8, 5.0),
    "step_uniform_fbgemm": (3.8, 5.0),
    "step_zipf_torch": (7.0, 10.0),
    "step_uniform_torch": (4.0, 7.0),
    "lookup_zipf_fbgemm": (1.0, 1.5),
    "lookup_uniform_fbgemm": (1.0, 1.5),
    "line_share": (0.42, 0.55),
    "insert_unordered_map": (3.0, 5.0),
    "threads_2_over_1": (1.7, 1.9),
    "threads_16_over_2": (6.5, 7.5),
    "snapshot_disk_share": (0.7, 0.9),
    "restore_disk_share": (0.7, 0.9),
    "bytes_per_row_overhead": (40.0, 24.0),
}
"""(must reach, aim) by case. Cases that are not here have no bar."""

if platform.machine() == "x86_64":
    BARS |= {"lookup_zipf_fbgemm": (0.8, 1.2), "lookup_uniform_fbgemm": (0.8, 1.2)}

LOWER_IS_BETTER = frozenset({"bytes_per_row_overhead"})

_PACKAGES = {"numpy": "numpy", "torch": "torch", "fbgemm": "fbgemm-gpu-cpu"}


def write(result: Result, sizes: Sizes, out: TextIO) -> None:
    """Print the line of a result."""
    env = environment(sizes)
    results.write(result, out, bench="engine", bars=BARS, env=env, lower_is_better=LOWER_IS_BETTER)


def environment(sizes: Sizes) -> dict[str, Any]:
    """Say where and how large; a result means nothing without it."""
    return {
        **machine(_PACKAGES),
        "threads": sizes.threads,
        "rows": sizes.rows,
        "dim": sizes.dim,
        "ids_per_step": sizes.ids_per_step,
        "bag": sizes.bag,
        "quick": sizes.quick,
    }


def progress(text: str) -> None:
    """Tell the person who waits."""
    print(f"bench engine: {text}", file=sys.stderr, flush=True)
