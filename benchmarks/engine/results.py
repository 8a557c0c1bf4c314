"""The bars of every case, and the one JSON line a case prints."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from engine.timing import Seconds
from engine.workload import Sizes

__all__ = ["BARS", "Result", "compare", "environment", "progress", "skipped", "write"]

BARS: dict[str, tuple[float, float]] = {
    "step_zipf_fbgemm": (3.5, 5.0),
    "step_uniform_fbgemm": (2.5, 4.0),
    "step_zipf_torch": (7.0, 10.0),
    "step_uniform_torch": (4.0, 7.0),
    "lookup_zipf_fbgemm": (1.2, 1.6),
    "lookup_uniform_fbgemm": (0.8, 1.4),
    "line_share": (0.32, 0.60),
    "insert_unordered_map": (3.0, 5.0),
    "threads_2_over_1": (1.7, 1.9),
    "snapshot_disk_share": (0.5, 0.8),
    "restore_disk_share": (0.5, 0.8),
    "bytes_per_row_overhead": (40.0, 24.0),
}
"""(must reach, aim) by case. Cases that are not here have no bar."""

LOWER_IS_BETTER = frozenset({"bytes_per_row_overhead"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one case found. ``ratio`` is ours over peer."""

    case: str
    ours: float | None = None
    peer: float | None = None
    ratio: float | None = None
    unit: str = ""
    rounds: int = 0
    skipped: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of the line."""


def compare(case: str, ours: Seconds, peer: Seconds, work: float, unit: str = "M ids/s", **extra: Any) -> Result:
    """Make a result of the seconds that ``work`` took both sides in each round; the ratio is the rounds' median."""
    return Result(
        case=case,
        ours=work / float(np.median(ours)),
        peer=work / float(np.median(peer)),
        ratio=float(np.median(peer / ours)),
        unit=unit,
        rounds=len(ours),
        extra={"ratio_low": float(np.min(peer / ours)), "ratio_high": float(np.max(peer / ours)), **extra},
    )


def skipped(case: str, why: object) -> Result:
    """Make the result of a case whose peer is missing."""
    return Result(case=case, skipped=str(why))


def write(result: Result, sizes: Sizes, out: TextIO) -> None:
    """Print the line of a result."""
    must, aim = BARS.get(result.case, (None, None))
    lower = result.case in LOWER_IS_BETTER
    line: dict[str, Any] = {
        "bench": "engine",
        "case": result.case,
        "ours": _rounded(result.ours),
        "peer": _rounded(result.peer),
        "ratio": _rounded(result.ratio),
        "unit": result.unit,
        "better": "lower" if lower else "higher",
        "must": must,
        "aim": aim,
        "ok": _passes(result.ratio, must, lower),
        "rounds": result.rounds,
        **{name: _rounded(value) for name, value in result.extra.items()},
        "env": environment(sizes),
    }
    if result.skipped is not None:
        line["skipped"] = result.skipped
    print(json.dumps(line), file=out, flush=True)


def _passes(ratio: float | None, must: float | None, lower: bool) -> bool | None:
    if must is None:
        return True
    if ratio is None:
        return None
    return ratio <= must if lower else ratio >= must


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def environment(sizes: Sizes) -> dict[str, Any]:
    """Say where and how large; a result means nothing without it."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "threads": sizes.threads,
        "rows": sizes.rows,
        "dim": sizes.dim,
        "ids_per_step": sizes.ids_per_step,
        "bag": sizes.bag,
        "quick": sizes.quick,
        "load": round(os.getloadavg()[0], 2),
        "commit": _commit(),
        "python": platform.python_version(),
        **{name: _version(package) for name, package in _PACKAGES.items()},
    }


_PACKAGES = {"numpy": "numpy", "torch": "torch", "fbgemm": "fbgemm-gpu-cpu"}


@functools.cache
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def _cpu() -> str:
    try:
        lines = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.strip().startswith("Model name")]
    return names[0] if names else platform.machine()


@functools.cache
def _commit() -> str:
    root = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+dirty" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def progress(text: str) -> None:
    """Tell the person who waits."""
    print(f"bench engine: {text}", file=sys.stderr, flush=True)
