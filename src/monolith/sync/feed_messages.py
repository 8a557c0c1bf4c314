"""Messages of ``proto/monolith_sync.proto``, from the private descriptor pool of the project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith._proto.messages import message_class
from monolith.data.records.messages import STANDARD

if TYPE_CHECKING:
    from monolith._proto.monolith_sync_pb2 import FollowRequest, FollowResponse, Position

__all__ = ["METHODS", "PIECE_BYTES", "SERVICE", "FollowRequest", "FollowResponse", "Position"]

SERVICE = "monolith.sync.Publishing"
PIECE_BYTES = 2 << 20
"""Largest content of a message. A message with this content stays below gRPC's 4 MiB limit."""

if not TYPE_CHECKING:
    FollowRequest, FollowResponse, Position = (
        message_class(STANDARD.pool, f"monolith.sync.{name}")
        for name in ("FollowRequest", "FollowResponse", "Position")
    )

METHODS: dict[str, tuple[type[Any], type[Any]]] = {"Follow": (FollowRequest, FollowResponse)}
"""Method to the classes of its request and responses."""
