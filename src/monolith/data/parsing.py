"""``parse_batch``: records that are in memory already, such as those of a request, become one batch."""

from __future__ import annotations

from collections.abc import Sequence

from monolith import _native
from monolith.data.batch import Batch
from monolith.data.schema import BatchMaker, Schema, make_parser
from monolith.data.sources.base import RecordKind

__all__ = ["BatchParser", "parse_batch"]


class BatchParser:
    """Turns lists of records into batches, again and again. Used by one thread at a time.

    Args:
        record: Which message the records are.
        schema: What is read out of them.
    """

    def __init__(self, record: RecordKind, schema: Schema) -> None:
        columns = _native.Columns()
        self._make = BatchMaker(schema, columns)
        self._parser = make_parser(schema, record, columns)

    def __call__(self, records: Sequence[bytes | bytearray | memoryview] | _native.Records) -> Batch:
        """Return one batch with the rows of all the records.

        Raises:
            RecordCorrupt: A record cannot be read; the text says which, and at which byte.
            SchemaMismatch: A row does not fit the schema.
        """
        lot = records if isinstance(records, _native.Records) else _native.Records(records)
        return self._make(self._parser.parse(lot))


def parse_batch(records: Sequence[bytes | bytearray | memoryview], *, record: RecordKind, schema: Schema) -> Batch:
    """Return one batch with the rows of all the records; see ``BatchParser``, which is quicker for many calls."""
    return BatchParser(record, schema)(records)
