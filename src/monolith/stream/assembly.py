"""``RowAssembler``: rows of a core become serialized Examples with labels and LineId.

Features, undeclared LineId fields and their order stay as the server wrote them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from monolith.data.records.messages import parse_message
from monolith.stream.events import Row
from monolith.stream.line_id import MESSAGES

__all__ = ["AssembledRow", "RowAssembler"]


@dataclass(frozen=True, slots=True)
class AssembledRow:
    """A record of the output topic. ``time_ms`` is the time of the impression."""

    key: bytes
    value: bytes
    time_ms: int


class RowAssembler:
    """Writes rows as Examples."""

    def assemble(self, row: Row, *, join_time_ms: int = 0) -> AssembledRow:
        """Return the record of a row.

        The weight of the row multiplies the weight that the impression has.

        Args:
            row: The row. The payload of its impression is a serialized Example.
            join_time_ms: Wall time of the commit; 0 leaves the field absent.

        Raises:
            RecordCorrupt: The payload is not an Example.
        """
        impression = row.impression
        example: Any = parse_message(MESSAGES.Example, impression.payload, "the payload of an impression")
        del example.label[:]
        example.label.extend(row.labels)
        if row.weight != 1:
            example.instance_weight = (example.instance_weight or 1.0) * row.weight
        line_id = example.line_id
        line_id.item_id = impression.item
        line_id.request_key = impression.key
        line_id.event_time_ms = impression.time_ms
        line_id.emission = row.emission
        line_id.cause_time_ms = row.cause_time_ms
        line_id.sample_rate = row.sample_rate
        del line_id.actions[:], line_id.pre_actions[:]
        line_id.actions.extend(row.actions)
        line_id.pre_actions.extend(row.pre_actions)
        if not line_id.HasField("req_time"):
            line_id.req_time = impression.time_ms // 1000
        if impression.ingest_time_ms:
            line_id.ingest_time_ms = impression.ingest_time_ms
        if join_time_ms:
            line_id.join_time_ms = join_time_ms
        return AssembledRow(impression.key, example.SerializeToString(), impression.time_ms)
