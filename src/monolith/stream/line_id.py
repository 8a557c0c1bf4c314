"""LineId fields of the joiner, and the message classes that have them.

The numbers start at 1000. Readers without these fields keep them as unknown fields.
"""

from __future__ import annotations

from typing import Final

from monolith.data.records.line_id import LineIdFields
from monolith.data.records.messages import with_line_id

__all__ = ["ACTION", "FIELDS", "IMPRESSION", "MESSAGES"]

IMPRESSION: Final = 0
"""``event_kind`` of an impression; also if the field is absent."""
ACTION: Final = 1
"""``event_kind`` of an action."""

FIELDS: Final = LineIdFields.standard().extended(
    {
        "request_key": (1000, "bytes"),
        "event_time_ms": (1001, "int64"),
        "emission": (1002, "uint32"),
        "ingest_time_ms": (1003, "int64"),
        "join_time_ms": (1004, "int64"),
        "model_version": (1005, "int64"),
        "cut": (1006, "int64"),
        "event_kind": (1007, "uint32"),
        "event_id": (1008, "fixed64"),
        "cause_time_ms": (1009, "int64"),
    }
)
"""The published LineId with the fields of the joiner."""

MESSAGES: Final = with_line_id(FIELDS)
"""Message classes whose LineId has ``FIELDS``."""
