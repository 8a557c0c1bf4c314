"""The requests that new states of a model are tried on: recent ones, or those of a file."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from os import PathLike

from monolith.core.errors import ConfigError, DataError
from monolith.data.records.reader import read_records
from monolith.data.sources.base import RecordKind
from monolith.serving.row_counts import row_count

__all__ = ["RecordSample", "read_sample"]

_MAX_BYTES = 64 << 20


class RecordSample:
    """Records, up to so many rows: a new one takes the place of others at random, so that old ones fade away.

    Args:
        max_rows: Rows of all records.
        seed: Of the drawing; None = another one at every start.
    """

    def __init__(self, max_rows: int, seed: int | None = None) -> None:
        self._max_rows = max_rows
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._records: list[tuple[bytes, RecordKind, int]] = []
        self._bytes = 0
        self.rows = 0
        """Rows of all records."""

    def add(self, records: Sequence[bytes | bytearray | memoryview], kind: RecordKind) -> None:
        """Take one of some records that a model has scored."""
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
        """Return all records."""
        with self._lock:
            found: dict[RecordKind, list[bytes]] = {}
            for record, kind, _ in self._records:
                found.setdefault(kind, []).append(record)
            return found


def read_sample(path: str | PathLike[str], kind: RecordKind, max_rows: int) -> RecordSample:
    """Return the first records of a file, up to so many rows.

    Raises:
        ConfigError: There are none, or they cannot be read.
    """
    sample = RecordSample(max_rows)
    try:
        for record in read_records(path):
            rows = row_count([record], kind)
            if sample.rows and sample.rows + rows > max_rows:
                break
            sample.add([record], kind)
    except (OSError, DataError) as error:
        raise ConfigError(f"canary_records is '{path}', which cannot be read as {kind}: {error}") from error
    if not sample.rows:
        raise ConfigError(f"canary_records is '{path}', which has no {kind} of up to {max_rows} rows; give others")
    return sample
