"""The bars of every case of serving, and what its lines say about the run."""

from __future__ import annotations

import sys
from typing import TextIO

from measure import results
from measure.machine import machine
from measure.results import Result
from serving.workload import Sizes
from train.workload import DENSE, DIM, HIDDEN, SPARSE

__all__ = ["BARS", "progress", "write"]

BARS: dict[str, tuple[float, float]] = {
    "rps_litserve": (2.0, 5.0),
    "rps_fastapi": (2.0, 5.0),
    "p99_litserve": (0.5, 0.25),
    "p99_fastapi": (0.5, 0.25),
    "rps_fastapi_own_parser": (2.5, 3.2),
    "p99_fastapi_own_parser": (0.45, 0.3),
    "grpc_over_rest": (0.85, 1.0),
    "processor_over_parts": (1.35, 1.15),
    "interpreter_per_request": (0.0, 0.0),
    "rps_busy_interpreter": (0.6, 0.9),
    "idle_connection_bytes": (1.0, 0.25),
    "rps_16_cores": (10_000.0, 16_000.0),
    "threads_8_over_1": (5.0, 7.0),
    "swap_p99": (2.0, 2.0),
    "load_10m_s": (5.0, 0.5),
    "export_peak_share": (1.0, 0.9),
}
"""(must reach, aim) by case."""

LOWER_IS_BETTER = frozenset(
    {
        "p99_litserve",
        "p99_fastapi",
        "p99_fastapi_own_parser",
        "processor_over_parts",
        "interpreter_per_request",
        "idle_connection_bytes",
        "swap_p99",
        "load_10m_s",
        "export_peak_share",
    }
)

_PACKAGES = {
    "numpy": "numpy",
    "torch": "torch",
    "onnxruntime": "onnxruntime",
    "grpcio": "grpcio",
    "litserve": "litserve",
    "fastapi": "fastapi",
    "uvicorn": "uvicorn",
}


def write(result: Result, sizes: Sizes, out: TextIO) -> None:
    """Print the line of a result."""
    env = {
        **machine(_PACKAGES),
        "threads": sizes.threads,
        "clients": sizes.clients,
        "rows_per_request": sizes.batch,
        "ids": sizes.ids,
        "sparse": len(SPARSE),
        "dense": DENSE,
        "dim": DIM,
        "hidden": list(HIDDEN),
        "quick": sizes.quick,
    }
    results.write(result, out, bench="serving", bars=BARS, env=env, lower_is_better=LOWER_IS_BETTER)


def progress(text: str) -> None:
    """Tell the person who waits."""
    print(f"bench serving: {text}", file=sys.stderr, flush=True)
