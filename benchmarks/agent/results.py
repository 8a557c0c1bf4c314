"""Bars of the cases of agents, and the environment of a result line."""

from __future__ import annotations

import sys
from typing import TextIO

from agent.workload import Sizes
from measure import results
from measure.machine import machine
from measure.results import Result

__all__ = ["BARS", "progress", "write"]

BARS: dict[str, tuple[float, float]] = {
    "killed_server_leaves_s": (30.0, 1.0),
    "publish_to_prediction_s": (10.0, 3.0),
    "agent_memory_mb": (300.0, 150.0),
    "map_change_s": (1.0, 0.2),
}
"""(must reach, aim) by case. Two heartbeats of an entry are 30 s."""

_PACKAGES = {"kazoo": "kazoo", "grpcio": "grpc"}


def write(result: Result, sizes: Sizes, out: TextIO) -> None:
    """Print the line of a result."""
    env = {
        **machine(_PACKAGES),
        "models": sizes.models,
        "replicas": sizes.replicas,
        "rows": sizes.rows,
        "quick": sizes.quick,
    }
    results.write(result, out, bench="agent", bars=BARS, env=env, lower_is_better=frozenset(BARS))


def progress(text: str) -> None:
    """Print progress on standard error."""
    print(f"bench agent: {text}", file=sys.stderr, flush=True)
