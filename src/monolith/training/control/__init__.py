"""Control of a running training: the ``Controller`` service, its client, and the file with its address.

gRPC is imported by ``server`` and ``client`` only.
"""

from __future__ import annotations

from monolith.training.control.address import address_path, read_address
from monolith.training.control.pause import BlockStatus, PauseControl, RunPause, WorkerStatus

__all__ = ["BlockStatus", "PauseControl", "RunPause", "WorkerStatus", "address_path", "read_address"]
