"""``MessageRowsSource``: reads messages of another source, such as those of a Kafka topic, as rows of columns.

The other source delivers the messages and keeps the position. JSON and Avro messages derive from it. Messages may lack
fields. Used by one thread.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Container, Sequence

from typing_extensions import override

from monolith import _native
from monolith.core.errors import RecordCorrupt
from monolith.data.sources.arrow_columns import TableColumns, load_pyarrow
from monolith.data.sources.base import Position, RecordKind, Source
from monolith.data.sources.column_options import ColumnOptions, WantedColumns

__all__ = ["MessageRowsSource"]

logger = logging.getLogger(__name__)


class MessageRowsSource(Source):
    """Rows of messages.

    Args:
        messages: Delivers the messages; a chunk becomes one record of rows.
        options: Fields that are excluded, and the field of the event time.
        skip_corrupt: Skip and count messages that cannot be read, instead of raising.
    """

    def __init__(self, messages: Source, options: ColumnOptions | None = None, *, skip_corrupt: bool = False) -> None:
        load_pyarrow()  # a missing package is an error before the first read
        self._messages = messages
        self._options = options or ColumnOptions()
        self._columns = TableColumns(options=self._options)
        self._skip_corrupt = skip_corrupt
        self.corrupt_messages = 0
        """Messages that were skipped."""

    @property
    @abstractmethod
    def _format(self) -> str:
        """Name of the format in errors."""

    @abstractmethod
    def _encode(self, messages: _native.Records) -> _native.Records | None:
        """Return the rows of a chunk of messages; None if none is left."""

    @property
    @override
    def record(self) -> RecordKind:
        return "example_batch"

    @property
    @override
    def is_ordered(self) -> bool:
        return self._messages.is_ordered

    def require(self, wanted: WantedColumns) -> None:
        """Read these fields only; before the first ``read``."""
        self._columns.wanted = wanted

    @property
    def missing_columns(self) -> int:
        """Always 0: a message may lack any field."""
        return 0

    @override
    def read(self) -> _native.Records | None:
        """Return the rows of the next chunk of messages, or None at the end.

        Raises:
            RecordCorrupt: A message cannot be read; the text names stream and offset.
            SchemaMismatch: A value has another type than earlier ones.
        """
        while (messages := self._messages.read()) is not None:
            if (rows := self._encode(messages)) is not None:
                return rows
        return None

    @override
    def position(self) -> Position:
        return self._messages.position()

    @override
    def resume(self, position: Position, then: Sequence[Position] = ()) -> None:
        self._messages.resume(position, then)

    @override
    def committed(self, position: Position) -> None:
        self._messages.committed(position)

    @override
    def close(self) -> None:
        self._messages.close()

    def _absent(self, known: Container[str]) -> list[str]:
        """Return the features and labels that the dataset needs and no message has had: they count as missing."""
        wanted = self._columns.wanted
        if wanted is None:
            return []
        features = [name for name, others in wanted.features.items() if not any(other in known for other in others)]
        return [name for name in (*features, *wanted.labels) if name not in known]

    def _refuse(self, messages: _native.Records, index: int, reason: str) -> None:
        """Skip a message of the chunk, or raise."""
        place = f"{messages.source}, offset {int(messages.offsets[index])}"
        if not self._skip_corrupt:
            raise RecordCorrupt(
                f"{place}: the message cannot be read as {self._format}: {reason}; skip it with on_corrupt='skip'"
            )
        self.corrupt_messages += 1
        logger.warning("message skipped place=%s reason=%s", place, reason)
