"""Feature engineering only: write the batches of the data pipeline to files, without training a model.

The files hold ExampleBatch records in the default framing (an empty sort id), so they are read again by::

    mt.data.files("<model_dir>/features/*.pb", record="example_batch", schema=...)

Features keep their names of the batch.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith.core.errors import ConfigError, SchemaMismatch
from monolith.data import Batch
from monolith.data.batch import Array, Ragged, Texts
from monolith.data.records import messages
from monolith.data.records.framing import Framing
from monolith.data.records.line_id import LineIdField, LineIdFields
from monolith.data.records.messages import Message, Messages
from monolith.data.records.writer import RecordWriter

__all__ = ["FeatureFiles", "encode_batch", "write_features"]

BATCHES_PER_FILE = 100

_MISSING_LABEL = float(np.finfo(np.float32).min)  # the original's value for a missing label


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureFiles:
    """The written files."""

    paths: tuple[Path, ...]
    """The files, in the order of their batches; none when there was no batch."""
    batches: int
    rows: int


def write_features(
    batches: Iterable[Batch],
    model_dir: Path,
    *,
    index: int = 0,
    batches_per_file: int = BATCHES_PER_FILE,
    line_fields: LineIdFields | None = None,
) -> FeatureFiles:
    """Write batches to ``<model_dir>/features/``, a new file for every few of them.

    A file appears when it is complete, and none is empty. When the reading of batches fails, the file being written
    does not appear.

    Args:
        batches: A dataset, or any batches.
        model_dir: The run's folder.
        index: Of this worker: 0 writes ``chief_<unique>.pb``, ``i`` writes ``worker<i - 1>_<unique>.pb``.
        batches_per_file: Batches in a file.
        line_fields: The fields of LineId, when ``Batch.extras`` has more than the published ones.
    """
    if index < 0 or batches_per_file < 1:
        raise ConfigError(f"index {index}, batches_per_file {batches_per_file}; give at least 0 and 1")
    folder = model_dir / "features"
    folder.mkdir(parents=True, exist_ok=True)
    role = "chief" if index == 0 else f"worker{index - 1}"
    paths: list[Path] = []
    count = rows = 0
    iterator = iter(batches)
    while (first := next(iterator, None)) is not None:
        path = folder / f"{role}_{uuid.uuid1()}.pb"
        with RecordWriter(path, framing=Framing()) as writer:
            for batch in _some(first, iterator, batches_per_file):
                writer.write(encode_batch(batch, line_fields))
                count += 1
                rows += batch.size
        paths.append(path)
    return FeatureFiles(paths=tuple(paths), batches=count, rows=rows)


def _some(first: Batch, others: Iterator[Batch], most: int) -> Iterator[Batch]:
    """``first`` and up to ``most - 1`` others."""
    yield first
    for _ in range(most - 1):
        batch = next(others, None)
        if batch is None:
            return
        yield batch


def encode_batch(batch: Batch, line_fields: LineIdFields | None = None) -> bytes:
    """Return a batch as a serialized ExampleBatch.

    Ids become ``fid_v2_list``, numbers ``float_list`` or ``int64_list``, strings ``bytes_list``. Labels, weight and
    the row fields (time, uid, actions, sample rate, extras) are in the format's own columns. A shared
    feature stays stored once.
    """
    family = messages.with_line_id(line_fields or LineIdFields.standard())
    plain = batch.numpy()
    record = family.ExampleBatch(batch_size=plain.size)
    for name, ids in plain.ids.items():
        _add_ids(record, name, ids)
    for name, values in plain.dense.items():
        _add_dense(record, name, values, plain.size)
    if plain.label.shape[1]:
        labels = np.where(plain.label_mask, plain.label, np.float32(_MISSING_LABEL))
        _add_dense(record, messages.LABEL, labels, plain.size)
    _add_dense(record, messages.WEIGHT, plain.weight.reshape(-1, 1), plain.size)
    lines = record.named_feature_list.add(name=messages.LINE_ID, type=messages.INDIVIDUAL)
    for line in _line_ids(plain, family):
        lines.feature.add().bytes_list.value.append(line.SerializeToString())
    return record.SerializeToString()


def _add_ids(record: Any, name: str, ids: Ragged) -> None:
    column = record.named_feature_list.add(name=name, type=messages.SHARED if ids.shared else messages.INDIVIDUAL)
    values = ids.values.view(np.uint64).tolist()
    bounds = ids.offsets.tolist()
    for begin, end in itertools.pairwise(bounds):
        feature = column.feature.add()
        feature.fid_v2_list.SetInParent()  # a row without ids has an empty list of them
        feature.fid_v2_list.value.extend(values[begin:end])


def _add_dense(record: Any, name: str, values: Array, rows: int) -> None:
    column = record.named_feature_list.add(name=name, type=messages.INDIVIDUAL)
    kind, of_rows = _rows_of(values, rows)
    for row in of_rows:
        getattr(column.feature.add(), kind).value.extend(row)


def _rows_of(values: Array, rows: int) -> tuple[str, list[list[Any]]]:
    """Which list of a Feature holds the values, and the values of each row."""
    if isinstance(values, Texts):
        texts, width = values.tolist(), len(values) // rows if rows else 0
        return "bytes_list", [texts[row * width : (row + 1) * width] for row in range(rows)]
    kind = "float_list" if values.dtype.kind == "f" else "int64_list"
    return kind, values.reshape(rows, -1).tolist()


def _line_ids(batch: Batch, family: Messages) -> list[Message]:
    """Return the row fields as LineId messages."""
    columns: dict[str, list[list[Any]]] = {
        "req_time": _column(batch.event_time_s),
        "uid": _column(batch.uid),
        "sample_rate": _column(batch.sample_rate),
        "actions": batch.actions.expanded(batch.size).tolist(),
    }
    for name, values in batch.extras.items():
        columns[name] = _rows_of(values, batch.size)[1]
    lines: list[Message] = [family.LineId() for _ in range(batch.size)]
    for name, rows in columns.items():
        put = _setter(family.line_id_fields[name])
        for line, values in zip(lines, rows, strict=True):
            put(line, values)
    return lines


def _column(values: NDArray[Any]) -> list[list[Any]]:
    return values.reshape(-1, 1).tolist()


def _setter(field: LineIdField) -> Callable[[Message, Sequence[Any]], None]:
    """Return a function that sets one LineId field from the values of a row."""
    convert = _conversion(field)

    def put(line: Message, values: Sequence[Any]) -> None:
        converted = [convert(value) for value in values]
        if field.is_repeated:
            getattr(line, field.name).extend(converted)
        elif converted:
            setattr(line, field.name, converted[0])

    return put


def _conversion(field: LineIdField) -> Callable[[Any], Any]:
    """Return the conversion from array values (signed numbers, bytes) to the field's type."""
    if field.type in ("fixed64", "uint64"):
        return lambda value: value & 0xFFFFFFFFFFFFFFFF
    if field.type in ("fixed32", "uint32"):
        return lambda value: value & 0xFFFFFFFF
    if field.type == "bool":
        return bool
    if field.type == "string":
        return lambda value: _text(field.name, value)
    return lambda value: value


def _text(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as exc:
        raise SchemaMismatch(
            f"LineId field {name!r} holds {value!r}, expected UTF-8 text; declare the field with type 'bytes'"
        ) from exc
