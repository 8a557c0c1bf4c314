"""Sizes of the benchmark of agents."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FULL", "QUICK", "Sizes"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    models: int
    replicas: int
    """Replicas of all models together."""
    changes: int
    rows: int
    """Rows of the published model."""
    kills: int
    quick: bool


FULL = Sizes(models=1000, replicas=10_000, changes=50, rows=1_000_000, kills=3, quick=False)
QUICK = Sizes(models=100, replicas=1000, changes=10, rows=20_000, kills=1, quick=True)
