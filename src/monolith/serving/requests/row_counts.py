"""Count the rows of serialized records without parsing them."""

from __future__ import annotations

from collections.abc import Sequence

from monolith import _native
from monolith.core.errors import RecordCorrupt
from monolith.data.sources.base import RecordKind

__all__ = ["row_count"]


def row_count(records: Sequence[bytes], kind: RecordKind) -> int:
    """Return the number of rows of all records.

    Raises:
        RecordCorrupt: A record is invalid.
    """
    if kind != "example_batch":
        return len(records)
    return sum(_batch_size(record, index) for index, record in enumerate(records))


def _batch_size(record: bytes, index: int) -> int:
    rows = _native.batch_rows(record)
    if rows is None:
        raise RecordCorrupt(f"record {index} has {len(record)} bytes, expected an ExampleBatch; check the record kind")
    return rows
