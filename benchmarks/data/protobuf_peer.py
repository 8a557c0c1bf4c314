"""The peer: Python protobuf (upb) and NumPy, written with care.

Of several ways to get values out of repeated fields the quickest was taken for each: slices of short lists (they come
as Python lists at once), ``__array__`` of long ones; every array is made by one call.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.arrays import Arrays
from monolith.data import Schema
from monolith.data.records.messages import LABEL, LINE_ID, ExampleBatch, Instance, LineId, TfExample

__all__ = ["assemble_example_batch", "assemble_instances", "assemble_tf_examples", "read_framed", "read_tfrecords"]

_INVALID_LABEL = np.finfo(np.float32).min
_U64 = np.uint64


def assemble_example_batch(record: bytes, schema: Schema) -> Arrays:
    """Parse one ExampleBatch, and make the arrays of a batch."""
    batch = ExampleBatch.FromString(record)
    rows = batch.batch_size
    columns = {column.name: column.feature for column in batch.named_feature_list}
    arrays: Arrays = {}
    for each in schema.sparse_features:
        lists = [feature.fid_v2_list.value[:] for feature in columns[each.name]]
        arrays[each.name], arrays[each.name + ".offsets"] = _ragged(lists, np.uint64)
    for dense in schema.dense_features:
        arrays[dense.name] = np.array([feature.float_list.value[:] for feature in columns[dense.name]], np.float32)
    _put_labels(arrays, [feature.float_list.value[0] for feature in columns[LABEL]])
    _put_lines(arrays, [LineId.FromString(feature.bytes_list.value[0]) for feature in columns[LINE_ID]])
    arrays["weight"] = np.ones(rows, np.float32)
    return arrays


def assemble_instances(records: Sequence[bytes], schema: Schema, *, named: bool = False) -> Arrays:
    """Parse Instances, and make the arrays of a batch: ids go to features by their slots, or by name."""
    parsed = [Instance.FromString(record) for record in records]
    features = [{feature.name: feature for feature in instance.feature} for instance in parsed]
    arrays: Arrays = {}
    if named:
        for each in schema.sparse_features:
            name = each.name
            arrays[name], arrays[name + ".offsets"] = _ragged([row[name].fid[:] for row in features], np.uint64)
    else:
        _put_flat_ids(arrays, [np.asarray(instance.fid) for instance in parsed], schema)
    for dense in schema.dense_features:
        name = dense.name
        arrays[name] = np.array([row[name].float_value[:] for row in features], np.float32)
    _put_labels(arrays, [instance.label[0] for instance in parsed])
    _put_lines(arrays, [instance.line_id for instance in parsed])
    arrays["weight"] = np.array(
        [instance.instance_weight if instance.HasField("instance_weight") else 1.0 for instance in parsed], np.float32
    )
    return arrays


def assemble_tf_examples(records: Sequence[bytes], schema: Schema) -> Arrays:
    """Parse tf.Examples, and make the arrays of a batch."""
    features = [TfExample.FromString(record).features.feature for record in records]
    arrays: Arrays = {}
    for each in schema.sparse_features:
        name = each.name
        values, offsets = _ragged([row[name].int64_list.value[:] for row in features], np.int64)
        arrays[name], arrays[name + ".offsets"] = values, offsets
    for dense in schema.dense_features:
        name = dense.name
        arrays[name] = np.array([row[name].float_list.value[:] for row in features], np.float32)
    _put_labels(arrays, [row["label"].float_list.value[0] for row in features])
    return arrays


def read_framed(stream: bytes) -> list[bytes]:
    """Cut a stream with a sort id and a Kafka dump word per record into its records."""
    word = struct.Struct("<Q").unpack_from
    at, records = 0, []
    while at < len(stream):
        at += 16 + word(stream, at)[0]  # the length of the sort id, the sort id, the word to skip
        begin = at + 8
        at = begin + word(stream, at)[0]
        records.append(stream[begin:at])
    return records


def read_tfrecords(path: Path) -> list[bytes]:
    """Return the records of a TFRecord file; checksums are not looked at."""
    data = path.read_bytes()
    word = struct.Struct("<Q").unpack_from
    at, records = 0, []
    while at < len(data):
        begin = at + 12
        end = begin + word(data, at)[0]
        records.append(data[begin:end])
        at = end + 4
    return records


def _ragged(lists: list[Any], kind: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(one) for one in lists], out=offsets[1:])
    values = np.fromiter(chain.from_iterable(lists), kind, offsets[-1])
    return values.view(np.int64), offsets


def _put_flat_ids(arrays: Arrays, flat: list[NDArray[np.uint64]], schema: Schema) -> None:
    """All rows at once: sort by slot, which keeps the order of rows, then count by slot and row."""
    rows = len(flat)
    fids = np.concatenate(flat)
    slots = (fids >> _U64(54)).astype(np.int16)
    ids = (slots.astype(np.uint64) << _U64(48)) | (fids & _U64((1 << 48) - 1))
    ids = ids[np.argsort(slots, kind="stable")].view(np.int64)  # a radix sort, for 16 bits
    row = np.repeat(np.arange(rows), [len(one) for one in flat])
    most = int(slots.max()) + 1
    counts = np.bincount(slots * np.int64(rows) + row, minlength=most * rows).reshape(most, rows)
    offsets = np.zeros((most, rows + 1), np.int64)
    np.cumsum(counts, 1, out=offsets[:, 1:])
    begins = np.concatenate(([0], np.cumsum(offsets[:, -1])))
    for each in schema.sparse_features:
        slot = each.slot or 0
        arrays[each.name], arrays[each.name + ".offsets"] = ids[begins[slot] : begins[slot + 1]], offsets[slot]


def _put_labels(arrays: Arrays, labels: list[float]) -> None:
    label = np.array(labels, np.float32).reshape(-1, 1)
    mask = (label != _INVALID_LABEL) & ~np.isnan(label)
    arrays["label"], arrays["label_mask"] = np.where(mask, label, np.float32(0)), mask


def _put_lines(arrays: Arrays, lines: list[Any]) -> None:
    arrays["uid"] = np.array([line.uid for line in lines], np.uint64).view(np.int64)
    arrays["event_time_s"] = np.array([line.req_time for line in lines], np.int64)
    arrays["sample_rate"] = np.array([line.sample_rate for line in lines], np.float32)
    arrays["actions"], arrays["actions.offsets"] = _ragged([line.actions[:] for line in lines], np.int64)
