"""The sizes of the module benchmark. The ids and gradients are those of the engine's benchmark."""

from __future__ import annotations

from dataclasses import replace

from engine import workload

__all__ = ["FULL", "QUICK"]

FULL = replace(workload.FULL, rows=10_000_000, huge_page_rounds=0)
QUICK = replace(workload.QUICK, rows=1_000_000)
