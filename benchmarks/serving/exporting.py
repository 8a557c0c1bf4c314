"""The model as both sides take it: an export of ours, and the same weights for PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from serving.peer_model import save
from serving.workload import Workload
from train.contestants import Ours as Trained
from train.workload import DIM, SPARSE

__all__ = ["Exported"]


class Exported:
    """A model with first values for rows.

    Args:
        workload: Its rows.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        torch.manual_seed(7)
        self._trained = Trained(workload, [])
        self._trained.fill(workload)

    def export(self, folder: Path, version: int) -> Path:
        """Write a version as users do."""
        return self._trained.estimator.export(folder, version)

    def save_for_torch(self, path: Path) -> None:
        """Write rows, in the precision that the export has them in, and network for the peers."""
        workload = self._workload
        rows = np.zeros((len(SPARSE) * workload.sizes.ids_per_feature + 1, DIM + 1), np.float32)
        for place in range(len(SPARSE)):
            rows[workload.ids(place)] = workload.first_values(place)
        save(path, torch.from_numpy(rows), self._trained.model.network)
