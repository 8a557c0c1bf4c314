"""The messages of ``proto/ps_training.proto`` and ``proto/monolith_ps.proto``, and the methods of the two services.

The classes live in the private descriptor pool of ``monolith.data.records``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith._proto.messages import message_class
from monolith.data.records.messages import STANDARD

if TYPE_CHECKING:
    from monolith._proto.monolith_ps_pb2 import (
        CompactDeltasRequest,
        CompactDeltasResponse,
        ConnectRequest,
        ConnectResponse,
        CutRequest,
        CutResponse,
        DeleteRequest,
        DeleteResponse,
        DrainRequest,
        DrainResponse,
        DropCutRequest,
        DropCutResponse,
        EvictRequest,
        EvictResponse,
        ExplainRequest,
        ExplainResponse,
        FlushDeltasRequest,
        FlushDeltasResponse,
        FusedRequest,
        FusedResponse,
        GetJobStateRequest,
        GetJobStateResponse,
        HoldRequest,
        HoldResponse,
        JobChange,
        JobState,
        LoggedState,
        PushName,
        ReleaseRequest,
        ReleaseResponse,
        Rendezvous,
        RestoreRequest,
        RestoreResponse,
        SaveRequest,
        SaveResponse,
        ShutdownRequest,
        ShutdownResponse,
        UpdateJobStateRequest,
        UpdateJobStateResponse,
        WorkerChange,
        WorkerEntry,
    )
    from monolith._proto.ps_training_pb2 import (
        ApplyGradientsRequest,
        ApplyGradientsResponse,
        BarrierRequest,
        BarrierResponse,
        BatchApplyGradientsRequest,
        BatchApplyGradientsResponse,
        BatchLookupRequest,
        BatchLookupResponse,
        GetStatsRequest,
        GetStatsResponse,
        HealthCheckRequest,
        HealthCheckResponse,
        LookupRequest,
        LookupResponse,
        TableStats,
    )

__all__ = [
    "METHODS",
    "TRAINING_METHODS",
    "SERVICE",
    "TRAINING_SERVICE",
    "ApplyGradientsRequest",
    "ApplyGradientsResponse",
    "BarrierRequest",
    "BarrierResponse",
    "BatchApplyGradientsRequest",
    "BatchApplyGradientsResponse",
    "BatchLookupRequest",
    "BatchLookupResponse",
    "CompactDeltasRequest",
    "CompactDeltasResponse",
    "ConnectRequest",
    "ConnectResponse",
    "CutRequest",
    "CutResponse",
    "DeleteRequest",
    "DeleteResponse",
    "DrainRequest",
    "DrainResponse",
    "DropCutRequest",
    "DropCutResponse",
    "EvictRequest",
    "EvictResponse",
    "ExplainRequest",
    "ExplainResponse",
    "FlushDeltasRequest",
    "FlushDeltasResponse",
    "FusedRequest",
    "FusedResponse",
    "GetJobStateRequest",
    "GetJobStateResponse",
    "GetStatsRequest",
    "GetStatsResponse",
    "HealthCheckRequest",
    "HealthCheckResponse",
    "HoldRequest",
    "HoldResponse",
    "JobChange",
    "JobState",
    "LoggedState",
    "LookupRequest",
    "LookupResponse",
    "PushName",
    "ReleaseRequest",
    "ReleaseResponse",
    "Rendezvous",
    "RestoreRequest",
    "RestoreResponse",
    "SaveRequest",
    "SaveResponse",
    "ShutdownRequest",
    "ShutdownResponse",
    "TableStats",
    "UpdateJobStateRequest",
    "UpdateJobStateResponse",
    "WorkerChange",
    "WorkerEntry",
]

SERVICE = "monolith.ps.ParameterServer"
"""Service that training calls."""
TRAINING_SERVICE = "monolith.ps_training.ParameterServerTraining"
"""Service of single tables, barrier, health and statistics."""


def _message(name: str) -> type[Any]:
    return message_class(STANDARD.pool, name)


def _methods(package: str, *verbs: str) -> dict[str, tuple[type[Any], type[Any]]]:
    return {verb: (_message(f"{package}.{verb}Request"), _message(f"{package}.{verb}Response")) for verb in verbs}


_FUSED = (_message("monolith.ps.FusedRequest"), _message("monolith.ps.FusedResponse"))

TRAINING_METHODS: dict[str, tuple[type[Any], type[Any]]] = _methods(
    "monolith.ps_training", "Lookup", "ApplyGradients", "Barrier", "HealthCheck", "GetStats"
)
"""Method to the classes of its request and its response."""
METHODS: dict[str, tuple[type[Any], type[Any]]] = {
    **_methods("monolith.ps", "Connect", "Hold", "Release", "Cut", "DropCut", "Save", "Restore"),
    **_methods("monolith.ps", "FlushDeltas", "CompactDeltas", "Explain", "Evict", "Delete", "Drain", "Shutdown"),
    **_methods("monolith.ps", "GetJobState", "UpdateJobState"),
    **_methods("monolith.ps_training", "BatchLookup", "BatchApplyGradients"),
    "FusedPull": _FUSED,
    "FusedPush": _FUSED,
}
"""Methods of ``SERVICE``."""

if not TYPE_CHECKING:
    _kinds = [kind for pair in (*TRAINING_METHODS.values(), *METHODS.values()) for kind in pair]
    _names = ("PushName", "JobChange", "JobState", "LoggedState", "Rendezvous", "WorkerChange", "WorkerEntry")
    _parts = [_message("monolith.ps_training.TableStats"), *(_message(f"monolith.ps.{name}") for name in _names)]
    globals().update({kind.DESCRIPTOR.name: kind for kind in [*_kinds, *_parts]})
