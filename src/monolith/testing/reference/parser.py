"""The reference of parsing and batch assembly: protobuf objects, Python loops and the written rules.

The native parser must agree with it on every message. It is slow, and shares only the message classes and
the arithmetic of ids with the native parser.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from monolith.core import fid
from monolith.core.errors import ConfigError, SchemaMismatch
from monolith.core.fid import ValueType
from monolith.data.batch import Batch, Ragged
from monolith.data.records.messages import Messages, with_line_id
from monolith.data.records.quantized import decode_quantized
from monolith.data.schema import DenseFeature, Schema, SparseFeature
from monolith.data.sources.base import RecordKind

__all__ = ["reference_batch"]

_INVALID = float(np.finfo(np.float32).min)
_EXAMPLE_ARMS = {
    "fid_v1_list": "fid_v1",
    "fid_v2_list": "fid_v2",
    "float_list": "float",
    "double_list": "double",
    "int64_list": "int",
    "bytes_list": "bytes",
    "fid_v1_lists": "fid_v1",
    "fid_v2_lists": "fid_v2",
    "float_lists": "float",
    "double_lists": "double",
    "int64_lists": "int",
    "bytes_lists": "bytes",
    "int64_value": "int",
    "float_value": "float",
    "double_value": "double",
    "bytes_value": "bytes",
}
_INSTANCE_FIELDS = {
    "float_value": "float",
    "int64_value": "int",
    "bytes_value": "bytes",
    "float_list": "float",
    "int64_list": "int",
    "bytes_list": "bytes",
}


@dataclass(slots=True)
class _Row:
    line: Any
    features: dict[str, tuple[str, list[Any]]] = field(default_factory=dict)
    flat: list[int] = field(default_factory=list)
    labels: list[float] = field(default_factory=list)
    weight: float = 1.0


def reference_batch(records: Sequence[bytes], record: RecordKind, schema: Schema) -> Batch:
    """Return the batch of all rows of ``records``.

    Raises:
        SchemaMismatch: A row does not fit the schema.
    """
    messages = with_line_id(schema.line_fields)
    rows = [row for payload in records for row in _rows(payload, record, messages, schema)]
    ids = {each.name: Ragged.from_lists(_ids_of(each, rows, schema)) for each in schema.sparse_features}
    dense = {each.name: np.array([_dense_of(each, row) for row in rows]) for each in schema.dense_features}
    heads = range(schema.labels)
    labels = [[row.labels[head] if head < len(row.labels) else _INVALID for head in heads] for row in rows]
    shape = (len(rows), schema.labels)
    label = np.array(labels, np.float32).reshape(shape)
    mask = ~np.isnan(label) & (label != np.float32(_INVALID))
    return Batch(
        size=len(rows),
        ids=ids,
        dense=dense,
        label=np.where(mask, label, np.float32(schema.missing_label)),
        label_mask=mask,
        weight=np.array([row.weight for row in rows], np.float32),
        sample_rate=np.array([row.line.sample_rate for row in rows], np.float32),
        event_time_s=np.array([row.line.req_time for row in rows], np.int64),
        uid=np.array([fid.as_signed(row.line.uid) for row in rows], np.int64),
        actions=Ragged.from_lists([list(row.line.actions) for row in rows]),
        extras={},
    )


def _ids_of(feature: SparseFeature, rows: Sequence[_Row], schema: Schema) -> list[list[int]]:
    owner = next((each for each in schema.sparse_features if each.slot == feature.slot), None)
    takes_flat = feature.slot is not None and owner is feature
    cells = []
    for row in rows:
        arm, values = row.features.get(feature.column or feature.name, ("", []))
        if not values and takes_flat:
            arm, values = "flat", [each for each in row.flat if fid.slot_v1(each) == feature.slot]
        cells.append((arm, values))
    if feature.value_type is None:
        feature = replace(feature, value_type=_first_type(cells))
    return [
        [_id(value, arm.replace("flat", "fid_v1"), feature, number, schema) for value in values]
        for number, (arm, values) in enumerate(cells)
    ]


def _first_type(cells: Sequence[tuple[str, list[Any]]]) -> ValueType:
    arms = [arm for arm, values in cells if values]
    first = arms[0] if arms else "int"
    return "fid" if first.startswith("f") and first != "float" else "text" if first == "bytes" else "integer"


def _id(value: Any, arm: str, feature: SparseFeature, number: int, schema: Schema) -> int:
    where = f"feature {feature.name!r}, row {number}: {arm} is {value!r}"
    if arm.startswith("fid"):
        if feature.value_type not in ("fid", "slot48"):
            raise SchemaMismatch(f"{where}, expected {feature.value_type}")
        is_converted = arm == "fid_v1" and schema.fid_version == "v2"
        return fid.v1_to_v2(int(value)) if is_converted else fid.as_signed(value)
    if feature.value_type == "slot48":
        return _old_id(value, arm, feature, where)
    if feature.value_type == "bucket" and arm != "bytes":
        return fid.make_v2(feature.slot or 0, _bucket(value))
    if arm == "float" and abs(value) > 1 << 24:
        raise SchemaMismatch(f"{where}, expected a smaller float")
    is_fid = feature.value_type == "fid"
    try:
        return fid.id_of(
            value,
            value_type=None if is_fid else feature.value_type,  # type: ignore[arg-type]
            slot=feature.slot if is_fid else None,
            hash_wide=feature.hash_wide,
        )
    except ConfigError as error:
        raise SchemaMismatch(f"{where}: {error}") from error


def _old_id(value: Any, arm: str, feature: SparseFeature, where: str) -> int:
    if feature.slot is None:
        raise SchemaMismatch(f"{where}, and the feature has no slot")
    if arm == "bytes":
        return fid.from_value(feature.slot, value)
    return fid.make_v2(feature.slot, value if arm == "int" else _bucket(value))


def _bucket(value: float) -> int:
    return math.trunc(math.log2(abs(value) + 1)) if math.isfinite(value) else 0


def _dense_of(feature: DenseFeature, row: _Row) -> list[Any]:
    arm, values = row.features.get(feature.column or feature.name, ("", []))
    if arm == "bytes" and feature.dtype == "float32":
        packed = next((each for each in values if each.startswith(b"UE_QTZ")), None)
        if packed is None:
            raise SchemaMismatch(f"feature {feature.name!r} holds bytes")
        arm, values = "float", list(decode_quantized(packed))
        if len(values) != feature.width:
            raise SchemaMismatch(f"feature {feature.name!r} is a quantised vector of {len(values)} values")
    wanted = {"float32": ("float", "double", "int"), "int64": ("int",), "bytes": ("bytes",)}[feature.dtype]
    if values and arm not in wanted:
        raise SchemaMismatch(f"feature {feature.name!r} holds {arm}")
    if values and len(values) != feature.width and not feature.pad:
        raise SchemaMismatch(f"feature {feature.name!r} has {len(values)} values")
    default: Any = b"" if feature.dtype == "bytes" else feature.default
    filled = [*values, *[default] * feature.width][: feature.width]
    kinds = {"float32": np.float32, "int64": np.int64}
    return [kinds[feature.dtype](each) if feature.dtype in kinds else each for each in filled]


# --- messages to rows ---


def _rows(payload: bytes, record: RecordKind, messages: Messages, schema: Schema) -> Iterator[_Row]:
    if record == "instance":
        yield _instance_row(messages.Instance.FromString(payload), messages, schema)
    elif record == "example":
        yield _example_row(messages.Example.FromString(payload), (), messages, schema)
    elif record == "example_batch":
        yield from _batch_rows(messages.ExampleBatch.FromString(payload), messages, schema)
    elif record == "example_batch_row_major":
        batch = messages.ExampleBatchRowMajor.FromString(payload)
        for example in batch.example:
            yield _example_row(example, batch.shared_feature, messages, schema)
    else:
        yield _tf_row(messages.TfExample.FromString(payload), messages, schema)


def _take(row: _Row, name: str, arm: str, values: list[Any], schema: Schema, found: dict[str, list[Any]]) -> None:
    """Put one feature where it belongs: a label, the weight, the LineId, or the features."""
    if not values:
        return
    default_label = not schema.label_features and name == "__LABEL__"
    if default_label or name in schema.label_features:
        found[name] = [float(value) for value in values]
    elif name == schema.weight_feature:
        row.weight = float(values[0])
    elif name == "__LINE_ID__":
        found[name] = values if arm == "bytes" else []
    else:
        row.features[name] = (arm, values)


def _merge_line(row: _Row, found: dict[str, list[Any]]) -> None:
    """The last LineId that came as a feature is merged into the record's own."""
    lines = found.pop("__LINE_ID__", [])
    if lines:
        row.line.MergeFromString(lines[0])


def _labels(row: _Row, own: Sequence[float], schema: Schema, found: dict[str, list[Any]]) -> None:
    if schema.label_features:
        row.labels = [value for name in schema.label_features for value in (found.get(name) or [_INVALID])]
    else:
        row.labels = [*own, *(value for values in found.values() for value in values)]


def _example_values(feature: Any) -> tuple[str, list[Any]]:
    name = feature.WhichOneof("type")
    if name is None:
        return "", []
    value, arm = getattr(feature, name), _EXAMPLE_ARMS[name]
    if name.endswith("_value"):
        return arm, [value]
    if name.endswith("_lists"):
        return arm, [each for inner in value.list for each in inner.value]
    return arm, list(value.value)


def _example_row(example: Any, shared: Sequence[Any], messages: Messages, schema: Schema) -> _Row:
    row = _Row(messages.LineId.FromString(example.line_id.SerializeToString()))
    if example.instance_weight:
        row.weight = example.instance_weight
    found: dict[str, list[Any]] = {}
    for named in (*shared, *example.named_feature):
        arm, values = _example_values(named.feature)
        _take(row, named.name, arm, values, schema, found)
    _merge_line(row, found)
    _labels(row, example.label, schema, found)
    return row


def _batch_rows(batch: Any, messages: Messages, schema: Schema) -> Iterator[_Row]:
    size = batch.batch_size or max((len(each.feature) for each in batch.named_feature_list), default=0)
    for index in range(size):
        row = _Row(messages.LineId())
        found: dict[str, list[Any]] = {}
        for column in batch.named_feature_list:
            if column.type == 1:
                arm, values = _example_values(column.feature[0]) if column.feature else ("", [])
            else:
                arm, values = _example_values(column.feature[index])
            _take(row, column.name, arm, values, schema, found)
        _merge_line(row, found)
        _labels(row, [], schema, found)
        yield row


def _instance_row(instance: Any, messages: Messages, schema: Schema) -> _Row:
    row = _Row(instance.line_id)
    if instance.HasField("instance_weight"):
        row.weight = instance.instance_weight
    row.flat = [fid.as_signed(each) for each in instance.fid]
    for name, arm in (("value", "float"), ("dense", "float"), ("next_fid", "fid_v1")):
        if values := list(getattr(instance, name)):
            row.features[name] = (arm, values)
    found: dict[str, list[Any]] = {}
    for feature in instance.feature:
        fids = [*feature.fid, *(each for inner in feature.fid_list for each in inner.value)]
        arm, values = "fid_v2", fids
        if not (feature.fid or feature.fid_list):
            for name, kind in _INSTANCE_FIELDS.items():
                if given := getattr(feature, name):
                    is_nested = name.endswith("_list")
                    values = [each for inner in given for each in inner.value] if is_nested else list(given)
                    arm = kind
                    break
        _take(row, feature.name, arm, values, schema, found)
    _merge_line(row, found)
    _labels(row, instance.label, schema, found)
    return row


def _tf_row(example: Any, messages: Messages, schema: Schema) -> _Row:
    row = _Row(messages.LineId())
    found: dict[str, list[Any]] = {}
    arms = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int"}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        values = list(getattr(feature, kind).value) if kind else []
        if name == "label" and not schema.label_features:
            found[name] = [float(value) for value in values]
        else:
            _take(row, name, arms.get(kind or "", ""), values, schema, found)
    _merge_line(row, found)
    _labels(row, [], schema, found)
    return row
