"""The messages of ``proto/controller.proto``, and under which names the service is known.

The classes live in the private descriptor pool of ``monolith.data.records``, as all others do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith._proto.messages import message_class
from monolith.data.records.messages import STANDARD

if TYPE_CHECKING:
    from monolith._proto.controller_pb2 import (
        ForgetRequest,
        ForgetResponse,
        GetBlockStatusRequest,
        GetBlockStatusResponse,
        GetTrainingStatusRequest,
        GetTrainingStatusResponse,
        ResumeTrainingRequest,
        ResumeTrainingResponse,
        SaveCheckpointRequest,
        SaveCheckpointResponse,
        StopTrainingRequest,
        StopTrainingResponse,
        WorkerStatus,
    )

__all__ = [
    "METHODS",
    "ORIGINAL_SERVICE",
    "SERVICE",
    "ForgetRequest",
    "ForgetResponse",
    "GetBlockStatusRequest",
    "GetBlockStatusResponse",
    "GetTrainingStatusRequest",
    "GetTrainingStatusResponse",
    "ResumeTrainingRequest",
    "ResumeTrainingResponse",
    "SaveCheckpointRequest",
    "SaveCheckpointResponse",
    "StopTrainingRequest",
    "StopTrainingResponse",
    "WorkerStatus",
]

SERVICE = "monolith.training.Controller"
"""Our name of the service."""
ORIGINAL_SERVICE = "Controller"
"""The original's: it is in no package. The bytes of the messages are the same, so its clients are answered too."""

_VERBS = ("StopTraining", "ResumeTraining", "GetBlockStatus", "SaveCheckpoint", "GetTrainingStatus", "Forget")


def _message(name: str) -> type[Any]:
    return message_class(STANDARD.pool, f"monolith.training.{name}")


METHODS: dict[str, tuple[type[Any], type[Any]]] = {
    verb: (_message(f"{verb}Request"), _message(f"{verb}Response")) for verb in _VERBS
}
"""Method to the classes of its request and its response."""

if not TYPE_CHECKING:
    globals().update({kind.DESCRIPTOR.name: kind for pair in METHODS.values() for kind in pair})
    WorkerStatus = _message("WorkerStatus")
