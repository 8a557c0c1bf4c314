"""Checkpoints of a training run: the state that is saved, when, and how it comes back.

Where files lie and which stay, :mod:`monolith.artifacts` knows; how tables are written, :mod:`monolith.embedding`.
"""

from __future__ import annotations

from monolith.training.checkpoints.checkpointer import Checkpointer
from monolith.training.checkpoints.pending import PendingSave
from monolith.training.checkpoints.restoring import Restored
from monolith.training.checkpoints.settings import CheckpointSettings
from monolith.training.checkpoints.state import TrainingState

__all__ = ["CheckpointSettings", "Checkpointer", "PendingSave", "Restored", "TrainingState"]
