"""The bars of the GPU benchmark, the speed of HierarchicalKV, and the line of a result."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from gpu.workload import Sizes
from measure import results
from measure.machine import machine
from measure.results import Result

__all__ = ["BARS", "HKV", "progress", "write"]

BARS: dict[str, tuple[float, float]] = {
    "find_hkv_50": (2.0, 2.3),
    "find_hkv_75": (2.0, 2.3),
    "insert_hkv_50": (1.5, 2.5),
    "insert_hkv_75": (1.5, 2.5),
    "step_zipf_torch_16": (60.0, 90.0),
    "step_zipf_torch_64": (45.0, 70.0),
    "step_uniform_torch_16": (4.5, 6.5),
    "step_uniform_torch_64": (3.5, 5.0),
    "deepfm_torch": (2.0, 4.0),
    "growth_longest_step": (20.0, 5.0),
    "bytes_per_row_overhead": (16.0, 12.0),
}
"""(must reach, aim) by case."""

LOWER_IS_BETTER = frozenset({"growth_longest_step", "bytes_per_row_overhead"})

HKV = {"find_hkv_50": 3.77, "find_hkv_75": 3.50, "insert_hkv_50": 2.15, "insert_hkv_75": 2.00}
"""Billions of keys per second of HierarchicalKV on an H200: dim 32, 128 M slots, 1,048,576 keys per call."""


def write(result: Result, sizes: Sizes, out: TextIO) -> None:
    """Print the line of a result."""
    results.write(result, out, bench="gpu", bars=BARS, env=_environment(sizes), lower_is_better=LOWER_IS_BETTER)


def _environment(sizes: Sizes) -> dict[str, Any]:
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {**machine({"numpy": "numpy", "torch": "torch"}), "gpu": device, "ids": sizes.ids, "quick": sizes.quick}


def progress(text: str) -> None:
    """Print the case that runs now to standard error."""
    print(f"bench gpu: {text}", file=sys.stderr, flush=True)
