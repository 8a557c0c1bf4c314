"""Parsers of one schema for many threads: each call borrows one, and they are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from monolith.core.errors import InvalidRequest
from monolith.data import Batch, BatchParser, Schema
from monolith.data.sources.base import RecordKind

__all__ = ["Parsers"]

_KINDS: tuple[str, ...] = get_args(RecordKind)


class Parsers:
    """Turns records of any kind into batches. Thread safe."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._idle: dict[str, list[BatchParser]] = {kind: [] for kind in _KINDS}

    def parse(self, records: Sequence[bytes | bytearray | memoryview], kind: RecordKind) -> Batch:
        """Return one batch with the rows of all records.

        Raises:
            InvalidRequest: There is no such kind of record.
            DataError: A record cannot be read, or does not fit.
        """
        idle = self._idle.get(kind)
        if idle is None:
            raise InvalidRequest(f"records of kind {kind!r} are unknown; give one of {', '.join(_KINDS)}")
        try:
            parser = idle.pop()  # one step for other threads too
        except IndexError:
            parser = BatchParser(kind, self._schema)
        batch = parser(records)
        idle.append(parser)  # one that failed is not used again
        return batch
