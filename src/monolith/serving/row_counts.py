"""How many rows a serialized record has, without reading it: only its outermost fields are walked over."""

from __future__ import annotations

from collections.abc import Sequence

from monolith.core.errors import RecordCorrupt
from monolith.data.sources.base import RecordKind

__all__ = ["row_count"]

_BATCH_SIZE = 3  # field of ExampleBatch
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5


def row_count(records: Sequence[bytes], kind: RecordKind) -> int:
    """Return the rows of all records.

    Raises:
        RecordCorrupt: One is no message.
    """
    if kind != "example_batch":
        return len(records)
    return sum(_batch_size(record, index) for index, record in enumerate(records))


def _batch_size(record: bytes, index: int) -> int:
    place, end, size = 0, len(record), 0
    try:
        while place < end:
            tag, place = _varint(record, place)
            wire = tag & 7
            if wire == _DELIMITED:
                length, place = _varint(record, place)
                place += length
            elif wire == _VARINT:
                value, place = _varint(record, place)
                if tag >> 3 == _BATCH_SIZE:
                    size = value
            elif wire == _FIXED64:
                place += 8
            elif wire == _FIXED32:
                place += 4
            else:
                raise IndexError
    except IndexError:
        place = end + 1
    if place != end:
        raise RecordCorrupt(f"record {index}: {end} bytes are no ExampleBatch; check the record kind")
    return size if size < 1 << 31 else 0  # a negative number; who reads the record refuses it


def _varint(record: bytes, place: int) -> tuple[int, int]:
    byte = record[place]
    place += 1
    if byte < 0x80:
        return byte, place
    value, shift = byte & 0x7F, 7
    while True:
        byte = record[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise IndexError
