"""Make the messages of ``proto/agent_service.proto`` and list the methods of its service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith._proto.messages import message_class
from monolith.agent.records import ServerType
from monolith.data.records.messages import STANDARD

if TYPE_CHECKING:
    from monolith._proto.agent_service_pb2 import (
        AddressList,
        GetReplicasRequest,
        GetReplicasResponse,
        GetResourceRequest,
        GetResourceResponse,
        HeartBeatRequest,
        HeartBeatResponse,
    )

__all__ = [
    "METHODS",
    "SERVICE",
    "AddressList",
    "GetReplicasRequest",
    "GetReplicasResponse",
    "GetResourceRequest",
    "GetResourceResponse",
    "HeartBeatRequest",
    "HeartBeatResponse",
    "server_type_number",
]

_PACKAGE = "monolith.serving.agent_service"
SERVICE = f"{_PACKAGE}.AgentService"

if not TYPE_CHECKING:
    for _name in __all__:
        if _name[0].isupper() and not _name.isupper():
            globals()[_name] = message_class(STANDARD.pool, f"{_PACKAGE}.{_name}")

METHODS: dict[str, tuple[type[Any], type[Any]]] = {
    "GetReplicas": (GetReplicasRequest, GetReplicasResponse),
    "GetResource": (GetResourceRequest, GetResourceResponse),
    "HeartBeat": (HeartBeatRequest, HeartBeatResponse),
}
"""Request and response class of each method."""

_NUMBERS = {ServerType.PS: 0, ServerType.ENTRY: 1, ServerType.DENSE: 2}


def server_type_number(server_type: str) -> Any:
    """Return the protobuf number of a server type."""
    return _NUMBERS[ServerType(server_type)]
