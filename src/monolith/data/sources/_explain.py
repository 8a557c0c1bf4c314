"""Finds the arguments that fit a stream, for the errors of a stream that cannot be parsed.

Detection runs only after an error or a suspicion. A healthy stream costs one cheap check of its first records.
"""

from __future__ import annotations

from collections.abc import Callable

from monolith import _native
from monolith.core.errors import RecordCorrupt, SchemaMismatch
from monolith.data.records.codecs import Codec
from monolith.data.records.detect import KINDS, Detection
from monolith.data.records.framing import Framing
from monolith.data.sources.base import RecordKind

__all__ = ["check_first_records", "with_remedy"]

_LOOK_AT = 16
_LOOK_AT_BYTES = 1 << 16


def with_remedy(error: RecordCorrupt, framing: Framing, codec: Codec, detect: Callable[[], Detection]) -> RecordCorrupt:
    """Return ``error`` with the arguments that fit the stream, if detection finds some."""
    try:
        remedy = detect().remedy(framing, codec)
    except OSError:  # the file cannot be read again; the first error is enough
        return error
    return RecordCorrupt(f"{error}; {remedy}") if remedy else error


def check_first_records(
    chunk: _native.Records,
    sort_id: bytes,
    record: RecordKind,
    framing: Framing,
    codec: Codec,
    detect: Callable[[], Detection],
) -> None:
    """Refuse a stream whose first records fit other arguments better.

    Wrong flags need not fail. A stream with empty sort ids, read without sort ids, has an empty record before each real
    one. A stream without sort ids, read with them, loses every second record as a sort id. ``sort_id`` is the sort id
    of the first record.

    Raises:
        RecordCorrupt: Another framing fits; the text names it.
        SchemaMismatch: The records have another message type; the text names it.
    """
    # One long record is as significant as many short ones.
    count = min(_LOOK_AT, max(1, _LOOK_AT_BYTES * len(chunk) // max(chunk.nbytes, 1)))
    known, _, misfits = _native.fit_records(chunk, count)[KINDS.index(record)]
    has_empty = any(not len(chunk[index]) for index in range(min(len(chunk), count)))
    if known and not misfits and not has_empty and not _is_message(sort_id, record):
        return
    found = detect()
    remedy = found.remedy(framing, codec)
    if remedy:
        raise RecordCorrupt(f"{chunk.source}: read with {framing!r} its first records cannot be parsed; {remedy}")
    if misfits and found.confidence in ("certain", "likely") and found.record not in (None, record):
        raise SchemaMismatch(
            f"{chunk.source}: its records are not {record} but {found.record}; give record={found.record!r}"
        )


def _is_message(sort_id: bytes, record: RecordKind) -> bool:
    if not sort_id:
        return False
    known, unknown, misfits = _native.fit_records(_native.Records([sort_id]), 1)[KINDS.index(record)]
    return known > unknown and not misfits
