"""How many rows serialized records have, without reading them."""

from __future__ import annotations

from collections.abc import Sequence

from monolith import _native
from monolith.core.errors import RecordCorrupt
from monolith.data.sources.base import RecordKind

__all__ = ["row_count"]


def row_count(records: Sequence[bytes], kind: RecordKind) -> int:
    """Return the rows of all records.

    Raises:
        RecordCorrupt: One is no message.
    """
    if kind != "example_batch":
        return len(records)
    return sum(_batch_size(record, index) for index, record in enumerate(records))


def _batch_size(record: bytes, index: int) -> int:
    rows = _native.batch_rows(record)
    if rows is None:
        raise RecordCorrupt(f"record {index}: {len(record)} bytes are no ExampleBatch; check the record kind")
    return rows
