"""The bars of every case of quality, and what its lines say about the run."""

from __future__ import annotations

import sys
from typing import TextIO

from measure import results
from measure.machine import machine
from measure.results import Result
from quality.workload import Sizes

__all__ = ["BARS", "progress", "write"]

BARS: dict[str, tuple[float, float]] = {
    "ml1m_deepfm_auc": (0.808, 0.815),
    "ml1m_commands_auc": (0.81, 0.81),
    "distributed_gap_auc": (0.003, 0.003),
}
"""(must reach, aim) by case. Cases that are not here have no bar."""

LOWER_IS_BETTER = frozenset({"distributed_gap_auc"})

_PACKAGES = {"numpy": "numpy", "torch": "torch"}


def write(result: Result, sizes: Sizes, out: TextIO) -> None:
    """Print the line of a result."""
    env = {
        **machine(_PACKAGES),
        "threads": sizes.threads,
        "epochs": sizes.epochs,
        "users": sizes.users,
        "quick": sizes.quick,
    }
    results.write(result, out, bench="quality", bars=BARS, env=env, lower_is_better=LOWER_IS_BETTER)


def progress(text: str) -> None:
    """Tell the person who waits."""
    print(f"bench quality: {text}", file=sys.stderr, flush=True)
