"""The model as all sides take it: an export of ours, the same weights for PyTorch, and the requests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from serving.peer_model import save
from serving.workload import Workload
from train.contestants import Ours as Trained
from train.workload import DIM, SPARSE

__all__ = ["Exported", "scratch_folder"]

SCRATCH = Path(__file__).resolve().parents[2] / "build" / "bench"
"""On the disk of the checkout: a folder in memory would not be what a server loads from."""


class Exported:
    """A DeepFM with first values for rows, and the requests for it.

    Args:
        workload: Rows and requests.
        folder: Where everything is written.
    """

    def __init__(self, workload: Workload, folder: Path) -> None:
        self._workload = workload
        self.versions = folder / "versions"
        """Folder of the versions that our server serves."""
        self.weights = folder / "weights.pt"
        """What the peers load."""
        torch.manual_seed(7)
        self._trained = Trained(workload, [])
        self._trained.fill(workload)
        self.requests = workload.write_requests(folder, workload.examples())
        """File of the requests by form."""

    def export(self, version: int) -> Path:
        """Write a version as users do."""
        return self._trained.estimator.export(self.versions, version)

    def save_for_torch(self) -> None:
        """Write rows and network for the peers."""
        workload = self._workload
        rows = np.zeros((len(SPARSE) * workload.sizes.ids_per_feature + 1, DIM + 1), np.float32)
        for place in range(len(SPARSE)):
            rows[workload.ids(place)] = workload.first_values(place)
        save(self.weights, torch.from_numpy(rows), self._trained.model.network)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Lend a folder that is gone afterwards."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SCRATCH, prefix="serving-") as folder:
        yield Path(folder)
