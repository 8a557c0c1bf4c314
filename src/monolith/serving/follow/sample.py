"""Sample of requests for the canary: recent requests, or the records of a file."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from os import PathLike

from monolith.core.errors import ConfigError, DataError
from monolith.data.records.reader import read_records
from monolith.data.sources.base import RecordKind
from monolith.serving.requests.row_counts import row_count

__all__ = ["RecordSample", "read_sample"]

_MAX_BYTES = 64 << 20


class RecordSample:
    """Bounded sample of records. A new record replaces random others, so that old records fade out. Thread safe.

    Args:
        max_rows: Largest number of rows of all records.
        seed: Seed of the sampling; None draws one.
    """

    def __init__(self, max_rows: int, seed: int | None = None) -> None:
        self._max_rows = max_rows
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._records: list[tuple[bytes, RecordKind, int]] = []
        self._bytes = 0
        self.rows = 0
        """Number of rows of all records."""

    def add(self, records: Sequence[bytes | bytearray | memoryview], kind: RecordKind) -> None:
        """Add one random record of a scored request."""
        if not records:
            return
        with self._lock:
            record = bytes(self._random.choice(records))
            rows = row_count([record], kind)
            if not 0 < rows <= self._max_rows or len(record) > _MAX_BYTES:
                return
            self._count(rows, len(record))
            while self.rows > self._max_rows or self._bytes > _MAX_BYTES:
                place = self._random.randrange(len(self._records))
                self._records[place], self._records[-1] = self._records[-1], self._records[place]
                gone = self._records.pop()
                self._count(-gone[2], -len(gone[0]))
            self._records.append((record, kind, rows))

    def _count(self, rows: int, size: int) -> None:
        self.rows += rows
        self._bytes += size

    def by_kind(self) -> dict[RecordKind, list[bytes]]:
        """Return all records by kind."""
        with self._lock:
            records: dict[RecordKind, list[bytes]] = {}
            for record, kind, _ in self._records:
                records.setdefault(kind, []).append(record)
            return records


def read_sample(path: str | PathLike[str], kind: RecordKind, max_rows: int) -> RecordSample:
    """Return the first records of a file, up to ``max_rows`` rows.

    Raises:
        ConfigError: The file has no records of this kind, or is unreadable.
    """
    sample = RecordSample(max_rows)
    try:
        for record in read_records(path):
            rows = row_count([record], kind)
            if sample.rows and sample.rows + rows > max_rows:
                break
            sample.add([record], kind)
    except (OSError, DataError) as error:
        raise ConfigError(f"canary_records is '{path}', expected records of kind {kind}: {error}") from error
    if not sample.rows:
        raise ConfigError(f"canary_records is '{path}', expected {kind} records of at most {max_rows} rows")
    return sample
