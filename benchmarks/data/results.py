"""The bars of every case of the data benchmark, and what its lines say about the run."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from data.workload import Sizes
from measure import results
from measure.machine import machine
from measure.results import Result

__all__ = ["BARS", "progress", "write"]

BARS: dict[str, tuple[float, float]] = {
    "example_batch_protobuf": (15.0, 30.0),
    "instance_protobuf": (15.0, 30.0),
    "tf_example_tensorflow": (1.5, 3.0),
    "tf_example_protobuf": (15.0, 30.0),
    "pipeline_share": (0.80, 0.95),
    "allocation": (1048576.0, 65536.0),
    "shuffle": (0.6, 0.9),
    "transforms": (0.6, 0.8),
    "parquet_arrow": (1.0, 1.5),
    "csv_arrow": (1.0, 1.0),
    "jsonl_arrow": (1.0, 1.0),
}
"""(must reach, aim) by case. Cases that are not here have no bar."""

LOWER_IS_BETTER = frozenset({"allocation"})

_PACKAGES = {"numpy": "numpy", "protobuf": "protobuf", "zstandard": "zstandard", "pyarrow": "pyarrow"}


def write(result: Result, sizes: Sizes, out: TextIO) -> None:
    """Print the line of a result."""
    env: dict[str, Any] = {
        **machine(_PACKAGES),
        "threads": result.extra.pop("threads", 1),
        "rows": sizes.batch,
        "features": sizes.features,
        "quick": sizes.quick,
    }
    results.write(result, out, bench="data", bars=BARS, env=env, lower_is_better=LOWER_IS_BETTER)


def progress(text: str) -> None:
    """Tell the person who waits."""
    print(f"bench data: {text}", file=sys.stderr, flush=True)
