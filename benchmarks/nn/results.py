"""The bars of the module benchmark, and the line of a result."""

from __future__ import annotations

import sys
from typing import TextIO

from engine.results import environment
from engine.workload import Sizes
from measure import results
from measure.results import Result

__all__ = ["BARS", "progress", "write"]

BARS: dict[str, tuple[float, float]] = {"bag_torch": (4.0, 7.0), "module_overhead": (1.10, 1.03)}
"""(must reach, aim) by case."""

LOWER_IS_BETTER = frozenset({"module_overhead"})


def write(result: Result, sizes: Sizes, out: TextIO) -> None:
    """Print the line of a result."""
    results.write(result, out, bench="nn", bars=BARS, env=environment(sizes), lower_is_better=LOWER_IS_BETTER)


def progress(text: str) -> None:
    """Print the case that runs now to standard error."""
    print(f"bench nn: {text}", file=sys.stderr, flush=True)
