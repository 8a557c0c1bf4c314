"""``monolith inspect machine``: shows the processor and memory as the engine sees them, and the kernels it chose."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from monolith import __version__
from monolith.cli._display import size_text

__all__ = ["EXAMPLE", "machine"]

EXAMPLE = "Example: MONOLITH_KERNELS=baseline monolith inspect machine"

Report: TypeAlias = dict[str, Any]

_PROCESSOR = Path("/proc/cpuinfo")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def machine(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Show processor, cores, memory, huge pages and the level of the engine's kernels."""
    report = _report()
    if as_json:
        typer.echo(json.dumps(report))
        return
    for line in _lines(report):
        typer.echo(line)


def _report() -> Report:
    from monolith.embedding.kernels import kernel_level, kernel_levels

    return {
        "version": __version__,
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "huge_pages": _huge_pages(),
        "kernels": kernel_level(),
        "kernel_levels": kernel_levels(),
    }


def _processor() -> str | None:
    """Return the model name of the processor; its numbers on Arm, where Linux has no name; None without both."""
    try:
        lines = _PROCESSOR.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "model name" not in fields and "CPU part" in fields:
        return f"implementer {fields.get('CPU implementer')}, part {fields['CPU part']}"
    return fields.get("model name")


def _huge_pages() -> str | None:
    """Return the mode of transparent huge pages: always, madvise or never; None without such a setting."""
    try:
        modes = _HUGE_PAGES.read_text(encoding="ascii").split()
    except OSError:
        return None
    return next((mode.strip("[]") for mode in modes if mode.startswith("[")), None)


def _lines(report: Report) -> Iterator[str]:
    yield f"monolith     {report['version']}"
    yield f"processor    {report['processor'] or 'unknown'} ({report['architecture']}), {report['cores']} cores"
    yield f"memory       {size_text(report['memory_bytes'])}, huge pages {report['huge_pages'] or 'unknown'}"
    yield f"kernels      {report['kernels']} (this processor runs {', '.join(report['kernel_levels'])})"
