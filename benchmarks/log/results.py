"""The bars of the event log's cases, and the line of a result."""

from __future__ import annotations

import sys
from typing import TextIO

from log.workload import Sizes
from measure import results
from measure.machine import machine
from measure.results import Result

__all__ = ["BARS", "progress", "write"]

BARS: dict[str, tuple[float, float]] = {"log_redis": (3.0, 10.0), "log_redis_4096": (3.0, 10.0)}
"""(must reach, aim) by case."""

_PACKAGES = {"redis": "redis", "hiredis": "hiredis"}


def write(result: Result, sizes: Sizes, out: TextIO) -> None:
    """Print the line of a result."""
    env = {**machine(_PACKAGES), "megabytes": sizes.megabytes, "quick": sizes.quick}
    results.write(result, out, bench="log", bars=BARS, env=env)


def progress(text: str) -> None:
    """Print progress for a person."""
    print(f"bench log: {text}", file=sys.stderr, flush=True)
