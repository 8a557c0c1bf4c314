"""Checkpoints of a training run: the saved state, the schedule of saves, and restoring.

:mod:`monolith.artifacts` owns the folder and its retention, :mod:`monolith.embedding` the snapshots of tables.
"""

from __future__ import annotations

from monolith.training.checkpoints.checkpointer import Checkpointer
from monolith.training.checkpoints.pending import PendingSave
from monolith.training.checkpoints.restoring import Restored
from monolith.training.checkpoints.state import TrainingState

__all__ = ["Checkpointer", "PendingSave", "Restored", "TrainingState"]
