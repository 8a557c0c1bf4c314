"""The bars of every case of training, and what its lines say about the run."""

from __future__ import annotations

import sys
from typing import TextIO

from measure import results
from measure.machine import machine
from measure.results import Result
from train.workload import DENSE, DIM, HIDDEN, SPARSE, Sizes

__all__ = ["BARS", "progress", "write"]

BARS: dict[str, tuple[float, float]] = {
    "deepfm_torch": (2.0, 4.0),
    "overhead_share": (0.08, 0.04),
    "checkpoint_pause_ms": (200.0, 50.0),
    "bytes_per_id_overhead": (48.0, 28.0),
}
"""(must reach, aim) by case."""

_BARS_OF_MANY_THREADS = {"overhead_share": (0.15, 0.08)}
"""The same where they differ, on more than two threads."""

LOWER_IS_BETTER = frozenset({"overhead_share", "checkpoint_pause_ms", "bytes_per_id_overhead"})

_PACKAGES = {"numpy": "numpy", "torch": "torch"}


def write(result: Result, sizes: Sizes, out: TextIO) -> None:
    """Print the line of a result."""
    env = {
        **machine(_PACKAGES),
        "threads": sizes.threads,
        "ids": sizes.ids,
        "batch": sizes.batch,
        "sparse": len(SPARSE),
        "dense": DENSE,
        "dim": DIM,
        "hidden": list(HIDDEN),
        "quick": sizes.quick,
    }
    bars = BARS if sizes.threads <= 2 else BARS | _BARS_OF_MANY_THREADS
    results.write(result, out, bench="train", bars=bars, env=env, lower_is_better=LOWER_IS_BETTER)


def progress(text: str) -> None:
    """Tell the person who waits."""
    print(f"bench train: {text}", file=sys.stderr, flush=True)
