"""``JsonMessagesSource``: reads messages that are JSON objects, such as those of a Kafka topic, as rows of columns.

Another source delivers the messages and keeps the position. A field gets its type when it first has a value, or from
``column_types``; a later value of another type is an error. Messages may lack fields.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from monolith import _native
from monolith.core.errors import RecordCorrupt, SchemaMismatch
from monolith.data.sources.arrow_columns import TableColumns, load_pyarrow, native_columns
from monolith.data.sources.base import Position, RecordKind, Source
from monolith.data.sources.column_options import ColumnOptions, WantedColumns
from monolith.data.sources.json_files import choose_json_type, parse_json_lines
from monolith.data.sources.text_tables import TextType, check_types

__all__ = ["JsonMessagesSource"]

logger = logging.getLogger(__name__)


class JsonMessagesSource(Source):
    """Rows of JSON messages.

    Args:
        messages: Delivers the messages; a chunk becomes one record of rows.
        column_types: Types of fields; others by their first values.
        options: Fields that are excluded, and the field of the event time.
        skip_corrupt: Skip and count messages that are not JSON objects, instead of raising.

    Raises:
        ConfigError: A type is unknown.
    """

    def __init__(
        self,
        messages: Source,
        column_types: Mapping[str, TextType] | None = None,
        *,
        options: ColumnOptions | None = None,
        skip_corrupt: bool = False,
    ) -> None:
        load_pyarrow("pyarrow.json")  # a missing package is an error before the first read
        check_types(column_types or {})
        self._messages = messages
        self._declared = dict(column_types or {})
        self._options = options or ColumnOptions()
        self._columns = TableColumns(options=self._options)
        self._skip_corrupt = skip_corrupt
        self._types: dict[str, Any] = {}
        self.corrupt_messages = 0
        """Messages that were skipped."""

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
            RecordCorrupt: A message is not a JSON object; the text names stream and offset.
            SchemaMismatch: A value has another type than earlier ones.
        """
        while (messages := self._messages.read()) is not None:
            payloads = self._select(messages)
            if payloads:
                return self._encode(payloads, messages)
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

    def _select(self, messages: _native.Records) -> dict[int, bytes]:
        """Return the messages that look like JSON objects, one line each, by their place in the chunk."""
        payloads = {}
        for index in range(len(messages)):
            payload = messages[index].strip()
            if not (payload.startswith(b"{") and payload.endswith(b"}")):
                self._refuse(messages, index, "it is not an object")
                continue
            payloads[index] = payload.replace(b"\n", b" ").replace(b"\r", b" ")
        return payloads

    def _refuse(self, messages: _native.Records, index: int, reason: str) -> None:
        place = f"{messages.source}, offset {int(messages.offsets[index])}"
        if not self._skip_corrupt:
            raise RecordCorrupt(
                f"{place}: the message cannot be read as JSON: {reason}; skip it with on_corrupt='skip'"
            )
        self.corrupt_messages += 1
        logger.warning("message skipped place=%s reason=%s", place, reason)

    def _encode(self, payloads: Mapping[int, bytes], messages: _native.Records) -> _native.Records | None:
        arrow = load_pyarrow()
        block = b"\n".join(payloads.values()) + b"\n"
        try:
            schema = self._schema_of(block)
            choices = self._columns.choose(schema, messages.source)
            names = dict.fromkeys(choice.name for choice in choices)
            table = parse_json_lines(block, arrow.schema([schema.field(name) for name in names]))
        except arrow.ArrowException as error:
            whole = self._without_corrupt(payloads, messages)
            if len(whole) < len(payloads):
                return self._encode(whole, messages) if whole else self.read()
            raise SchemaMismatch(
                f"{messages.source}, offsets from {int(messages.offsets[0])}: {error}; correct the messages, or name "
                "the types of the fields: column_types"
            ) from error
        batch = table.combine_chunks().to_batches()[0]
        columns = native_columns(batch, choices)
        return _native.encode_columns(columns, 0, batch.num_rows, messages.source, int(messages.offsets[0]))

    def _without_corrupt(self, payloads: Mapping[int, bytes], messages: _native.Records) -> dict[int, bytes]:
        whole = {}
        for index, payload in payloads.items():
            try:
                json.loads(payload)
            except ValueError as error:
                self._refuse(messages, index, str(error))
            else:
                whole[index] = payload
        return whole

    def _schema_of(self, block: bytes) -> Any:
        """Return the fields to read; new fields get the type of their first values."""
        arrow = load_pyarrow()
        wanted = self._columns.wanted
        names = None if wanted is None or wanted.reads_all else {*wanted.features, *wanted.labels}
        time = self._options.time_column
        if names is not None and time is not None:
            names.add(time)
        if names is None or any(name not in self._types and name.encode() in block for name in names):
            for field in parse_json_lines(block, None).schema:
                kind = choose_json_type(field.type, self._declared.get(field.name))
                if not _is_unknown(kind):
                    self._types.setdefault(field.name, kind)
        chosen = self._types if names is None else {name: self._types.get(name, arrow.null()) for name in names}
        if time is not None:
            chosen = {**chosen, time: self._types.get(time, arrow.null())}
        return arrow.schema(list(chosen.items()))


def _is_unknown(kind: Any) -> bool:
    types = load_pyarrow().types
    return bool(types.is_null(kind) or (types.is_list(kind) and types.is_null(kind.value_type)))
