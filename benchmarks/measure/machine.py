"""Where a benchmark ran: the processor, its load, the commit, the versions of packages."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["machine"]


def machine(packages: Mapping[str, str]) -> dict[str, Any]:
    """Describe this machine; ``packages`` maps names to the distributions whose versions they stand for."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "load": round(os.getloadavg()[0], 2),
        "commit": _commit(),
        "python": platform.python_version(),
        **{name: _version(package) for name, package in packages.items()},
    }


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
