"""The two experiments of the Monolith paper, on worlds with known laws and on the reader's own files.

:mod:`~monolith.demo.experiments.sync_interval` measures how much a model loses by late publishes;
:mod:`~monolith.demo.experiments.collisions` measures how much it loses by hashed ids. Both compare on the same rows.
"""

from __future__ import annotations

from monolith.demo.experiments.collisions import CollisionResult, measure_collisions
from monolith.demo.experiments.sync_interval import IntervalResult, SyncIntervalReport, measure_file, measure_world

__all__ = [
    "CollisionResult",
    "IntervalResult",
    "SyncIntervalReport",
    "measure_collisions",
    "measure_file",
    "measure_world",
]
