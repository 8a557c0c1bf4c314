"""Pool of parsers of one schema. Each call borrows a parser. Thread safe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from monolith.core.errors import InvalidRequest
from monolith.data import Batch, BatchParser, Schema
from monolith.data.sources.base import RecordKind

__all__ = ["Parsers"]

_KINDS: tuple[str, ...] = get_args(RecordKind)


class Parsers:
    """Parses records of any kind into batches. Thread safe."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        # A parser learns the type of a feature without one; the next request must not depend on that.
        self._is_pooled = all(each.value_type is not None for each in schema.sparse_features)
        self._idle: dict[str, list[BatchParser]] = {kind: [] for kind in _KINDS}

    def parse(self, records: Sequence[bytes | bytearray | memoryview], kind: RecordKind) -> Batch:
        """Return one batch with the rows of all records.

        Raises:
            InvalidRequest: The kind is unknown.
            DataError: A record is invalid, or does not fit the schema.
        """
        idle = self._idle.get(kind)
        if idle is None:
            raise InvalidRequest(f"record kind is {kind!r}, expected one of {', '.join(_KINDS)}")
        try:
            parser = idle.pop()  # atomic
        except IndexError:
            parser = BatchParser(kind, self._schema)
        batch = parser(records)
        if self._is_pooled:  # a parser that failed is dropped
            idle.append(parser)
        return batch
