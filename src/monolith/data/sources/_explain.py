"""Turns "these bytes make no sense" into what the user should have written.

Asked only when something is wrong, or looks it; a healthy stream costs one cheap look at its first records.
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
    """Return ``error``, with what would have fitted at its end when that can be told."""
    try:
        remedy = detect().remedy(framing, codec)
    except OSError:  # the file cannot be read a second time; what is wrong with the first is known
        return error
    return RecordCorrupt(f"{error}; {remedy}") if remedy else error


def check_first_records(
    lot: _native.Records,
    sort_id: bytes,
    record: RecordKind,
    framing: Framing,
    codec: Codec,
    detect: Callable[[], Detection],
) -> None:
    """Refuse a stream that can be read as asked, but makes no sense so, where another way makes sense.

    Wrong flags need not fail: a stream with empty sort ids, read without them, has an empty record before each real
    one; a stream without sort ids, read with them, has every second record taken for one. ``sort_id`` is that of the
    first record.

    Raises:
        RecordCorrupt: Another framing fits; the text names it.
        SchemaMismatch: The records are another message; the text names it.
    """
    # One long record says as much as many short ones.
    count = min(_LOOK_AT, max(1, _LOOK_AT_BYTES * len(lot) // max(lot.nbytes, 1)))
    known, _, misfits = _native.fit_records(lot, count)[KINDS.index(record)]
    has_empty = any(not len(lot[index]) for index in range(min(len(lot), count)))
    if known and not misfits and not has_empty and not _is_message(sort_id, record):
        return
    found = detect()
    remedy = found.remedy(framing, codec)
    if remedy:
        raise RecordCorrupt(f"{lot.source}: read with {framing!r} its first records make no sense; {remedy}")
    if misfits and found.confidence in ("certain", "likely") and found.record not in (None, record):
        raise SchemaMismatch(
            f"{lot.source}: its records are not {record} but {found.record}; give record={found.record!r}"
        )


def _is_message(sort_id: bytes, record: RecordKind) -> bool:
    if not sort_id:
        return False
    known, unknown, misfits = _native.fit_records(_native.Records([sort_id]), 1)[KINDS.index(record)]
    return known > unknown and not misfits
