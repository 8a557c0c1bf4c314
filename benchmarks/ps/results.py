"""The bars of every case of parameter servers, and what its lines say about the run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TextIO

import numpy as np

from measure import results
from measure.machine import machine
from measure.results import Result
from ps.workload import DIM, Sizes

__all__ = ["BARS", "progress", "seconds_result", "write"]

BARS: dict[str, tuple[float, float]] = {
    "lookup_share": (0.35, 0.60),
    "lookup_redis": (10.0, 25.0),
    "push_share": (0.35, 0.60),
    "wall_2ps_over_local": (1.6, 1.25),
    "start_s": (1.0, 1.0),
    "recover_10m_s": (15.0, 15.0),
}
"""(must reach, aim) by case."""

LOWER_IS_BETTER = frozenset({"wall_2ps_over_local", "start_s", "recover_10m_s"})

_PACKAGES = {"numpy": "numpy", "torch": "torch", "redis": "redis", "hiredis": "hiredis"}


def seconds_result(case: str, seconds: Sequence[float], **extra: Any) -> Result:
    """Make a result of waits that have no peer."""
    middle = float(np.median(seconds))
    return Result(
        case=case,
        ours=middle,
        peer=1.0,
        ratio=middle,
        unit="s",
        rounds=len(seconds),
        extra={
            "peer_name": "one second, so that the ratio is the figure itself",
            "ratio_low": float(min(seconds)),
            "ratio_high": float(max(seconds)),
            **extra,
        },
    )


def write(result: Result, sizes: Sizes, out: TextIO) -> None:
    """Print the line of a result."""
    env = {
        **machine(_PACKAGES),
        "threads": sizes.threads,
        "rows": sizes.rows,
        "dim": DIM,
        "ids_per_call": sizes.ids,
        "draw": "uniform, distinct",
        "quick": sizes.quick,
    }
    results.write(result, out, bench="ps", bars=BARS, env=env, lower_is_better=LOWER_IS_BETTER)


def progress(text: str) -> None:
    """Tell the person who waits."""
    print(f"bench ps: {text}", file=sys.stderr, flush=True)
