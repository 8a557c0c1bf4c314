"""Messages that hold a stream of framed records, taken apart. Knows no broker: a message is its bytes here."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TypeAlias

from monolith.core.errors import ConfigError, RecordCorrupt

__all__ = ["FrameFlags", "checked_flags", "split_frames"]

FrameFlags: TypeAlias = tuple[bool, bool, bool, bool]
"""How records are framed: sort_id, kafka_dump, kafka_dump_prefix, lagrangex_header."""

_MOST_RECORD_BYTES = 1 << 30
_RESERVED_SIZE = 0xFEFEFEFE


def checked_flags(framing: Sequence[object]) -> FrameFlags:
    """Return the flags, or raise ``ConfigError``."""
    if len(framing) != 4 or not all(isinstance(flag, bool) for flag in framing):
        raise ConfigError(
            "framing must be four flags (sort_id, kafka_dump, kafka_dump_prefix, lagrangex_header) or None, got "
            f"{framing!r}"
        )
    sort_id, kafka_dump, kafka_dump_prefix, lagrangex_header = map(bool, framing)
    return sort_id, kafka_dump, kafka_dump_prefix, lagrangex_header


def split_frames(body: bytes, framing: FrameFlags) -> list[bytes]:
    r"""Return the records of a stream of framed records.

    A record is a header, its size (8 bytes, little-endian like all numbers here) and its payload. The header has what
    the flags say: a prefix, a sort id, a word to skip; or the lagrangex word alone.

    Raises:
        RecordCorrupt: A record is cut off, or its size is impossible; the text names the byte.

    >>> split_frames(b"\x01" + bytes(7) + b"a" + bytes(8), (False, False, False, False))
    [b'a', b'']
    """
    sort_id, kafka_dump, kafka_dump_prefix, lagrangex_header = framing
    at = 0

    def take(size: int, what: str) -> bytes:
        nonlocal at
        if size > len(body) - at:
            raise RecordCorrupt(f"byte {at}: {what} needs {size} bytes, {len(body) - at} are left")
        at += size
        return body[at - size : at]

    def word(what: str) -> int:
        return int(struct.unpack("<Q", take(8, what))[0])

    records = []
    while at < len(body):
        if lagrangex_header:
            word("the lagrangex header")
        else:
            aggregate = word("the prefix") if kafka_dump_prefix else 0
            if kafka_dump_prefix and aggregate == 0:
                word("the prefix")
            if aggregate != 0 and not sort_id:
                raise RecordCorrupt(f"byte {at - 8}: the prefix announces a sort id of {aggregate} bytes; set sort_id")
            if sort_id:
                take(aggregate or word("the length of the sort id"), "the sort id")
            if kafka_dump:
                word("the kafka_dump header")
        begin = at
        size = word("the size of a record")
        if size == _RESERVED_SIZE or size >= _MOST_RECORD_BYTES:
            raise RecordCorrupt(f"byte {begin}: a record of {size} bytes is not possible")
        records.append(take(size, "a record"))
    return records
