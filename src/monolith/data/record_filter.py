"""``RecordFilter``: keeps or drops single records by a transform, and leaves the bytes of kept records unchanged.

For tools that read records and write records. Training uses the transforms of ``Dataset``, which run on parsed rows.
A transform that changes labels changes these fields of a kept record and nothing else. Not thread safe.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

from monolith import _native
from monolith.core.errors import ConfigError
from monolith.data.records import messages
from monolith.data.records.convert import batch_to_examples, examples_to_batch
from monolith.data.schema import Schema, make_parser
from monolith.data.transforms import AddLabel, Compose, LogicalOr, Transform, parse_transform_config
from monolith.data.transforms.base import BuildContext

__all__ = ["FilteredKind", "RecordFilter"]

FilteredKind: TypeAlias = Literal["instance", "example", "example_batch"]
"""Message types with the ids, labels and LineIds that filters read."""


class RecordFilter:
    """Applies a transform to records of one message type.

    Args:
        record: The message type.
        transform: Filters and ``AddLabel``, or the text proto of a ``TransformConfig``.

    Raises:
        ConfigError: The message type has no filters, or the text is not a TransformConfig.

    >>> keep = RecordFilter("example", 'configs { basic_config { filter_by_action { has_actions: 2 } } }')
    >>> example = messages.Example()
    >>> keep(example.SerializeToString()) is None
    True
    """

    def __init__(self, record: str, transform: Transform | str) -> None:
        if record not in get_args(FilteredKind):
            known = ", ".join(get_args(FilteredKind))
            raise ConfigError(f"record is {record!r}, expected one of {known}; other records have no LineId")
        self._transform = parse_transform_config(transform) if isinstance(transform, str) else transform
        self._record = record
        columns = _native.Columns()
        schema = Schema(labels=0)
        self._row_kind: Any = "example" if record == "example_batch" else record
        self._parser = make_parser(schema, self._row_kind, columns, keep_all=True)
        context = BuildContext(columns=columns, line_fields=schema.line_fields.native())
        self._operation = self._transform.build(context.at(1))
        self._columns = columns
        self._sets_labels = _has_labels(self._transform)

    def __call__(self, payload: bytes) -> bytes | None:
        """Return a record that the transform keeps, or None.

        The rows of a batch are kept or dropped one by one. If rows are dropped, shared columns become columns per row.

        Raises:
            RecordCorrupt: The record is not of the message type.
        """
        if self._record != "example_batch":
            return self._keep(payload)
        batch = messages.parse_message(messages.ExampleBatch, payload)
        rows = batch_to_examples(batch)
        kept = [content for row in rows if (content := self._keep(row.SerializeToString())) is not None]
        if len(kept) == len(rows) and not self._sets_labels:
            return payload
        return examples_to_batch(map(messages.Example.FromString, kept)).SerializeToString() if kept else None

    def _keep(self, payload: bytes) -> bytes | None:
        rows = self._parser.parse(_native.Records([payload]))
        self._operation.run(rows)
        if not len(rows):
            return None
        return self._with_labels(payload, rows) if self._sets_labels else payload

    def _with_labels(self, payload: bytes, rows: _native.Rows) -> bytes:
        changed = messages.Example.FromString(_native.encode_examples(rows, self._columns)[0])
        message: Any = messages.parse_message(messages.record_class(self._row_kind), payload)
        del message.label[:]
        message.label.extend(changed.label)
        if changed.line_id.sample_rate != message.line_id.sample_rate:
            message.line_id.sample_rate = changed.line_id.sample_rate
        content: bytes = message.SerializeToString()
        return content


def _has_labels(transform: Transform) -> bool:
    if isinstance(transform, Compose):
        return any(map(_has_labels, transform))
    if isinstance(transform, LogicalOr):
        return _has_labels(transform.x) or _has_labels(transform.y)
    return isinstance(transform, AddLabel)
