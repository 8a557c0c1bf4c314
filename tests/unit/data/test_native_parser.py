"""The native parser and the plain protobuf model agree, however a message is spelled."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_strategies import BY_RECORD
from monolith.core import fid
from monolith.core.errors import DataError, SchemaMismatch
from monolith.data.batch import Batch
from monolith.data.schema import DenseFeature, Schema, SparseFeature, parse_batch
from monolith.testing.reference.parser import reference_batch

RECORDS = list(BY_RECORD)
FEATURES = [
    SparseFeature("a", slot=7),
    SparseFeature("slot_3"),
    SparseFeature("fc_slot_9"),
    SparseFeature("user", slot=600, column="user_id"),
]


def schema_of(value_type: Any, hash_wide: bool = False) -> Schema:
    return Schema(
        sparse=[replace(each, value_type=value_type, hash_wide=hash_wide) for each in FEATURES],
        labels=2,
    )


SCHEMA = schema_of("slot48")  # the rule that refuses no value


def assert_equal(ours: Batch, theirs: Batch) -> None:
    assert ours.size == theirs.size
    for name in theirs.ids:
        assert ours.ids[name].expanded(ours.size).tolist() == theirs.ids[name].tolist(), name
    for name in theirs.dense:
        mine = ours.dense[name]
        assert np.array_equal(mine, theirs.dense[name].reshape(mine.shape), equal_nan=True), name
    for name in ("label", "label_mask", "weight", "sample_rate", "event_time_s", "uid"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name), equal_nan=True), name
    assert ours.actions.tolist() == theirs.actions.tolist()


@pytest.mark.parametrize("record", RECORDS)
@given(data=st.data())
def test_the_native_parser_agrees_with_protobuf(record: Any, data: st.DataObject) -> None:
    payloads = [each.SerializeToString() for each in data.draw(st.lists(BY_RECORD[record], min_size=1, max_size=3))]
    assert_equal(parse_batch(payloads, record=record, schema=SCHEMA), reference_batch(payloads, record, SCHEMA))


@pytest.mark.parametrize("record", RECORDS)
@given(data=st.data())
def test_the_native_parser_gives_the_ids_of_the_reference_or_both_refuse(record: Any, data: st.DataObject) -> None:
    schema = schema_of(data.draw(st.sampled_from([None, *fid.VALUE_TYPES])), data.draw(st.booleans()))
    payloads = [each.SerializeToString() for each in data.draw(st.lists(BY_RECORD[record], min_size=1, max_size=3))]
    try:
        expected = reference_batch(payloads, record, schema)
    except SchemaMismatch:
        with pytest.raises(SchemaMismatch):
            parse_batch(payloads, record=record, schema=schema)
        return
    assert_equal(parse_batch(payloads, record=record, schema=schema), expected)


@pytest.mark.parametrize("record", ["instance", "example", "tf_example"])
@given(data=st.data())
def test_messages_that_are_put_together_are_merged_as_protobuf_merges_them(record: Any, data: st.DataObject) -> None:
    # Concatenated messages repeat fields, split packed ones and come out of order: all legal.
    pieces = data.draw(st.lists(BY_RECORD[record], min_size=2, max_size=3))
    payload = b"".join(piece.SerializeToString() for piece in pieces)
    assert_equal(parse_batch([payload], record=record, schema=SCHEMA), reference_batch([payload], record, SCHEMA))


@pytest.mark.parametrize("record", RECORDS)
@given(data=st.data())
def test_dense_features_agree_with_protobuf_or_both_refuse(record: Any, data: st.DataObject) -> None:
    schema = Schema(
        dense=[DenseFeature("a", 2, pad=True), DenseFeature("b", 1), DenseFeature("value", 3, "int64", pad=True)]
    )
    payloads = [each.SerializeToString() for each in data.draw(st.lists(BY_RECORD[record], min_size=1, max_size=3))]
    try:
        expected = reference_batch(payloads, record, schema)
    except SchemaMismatch:
        with pytest.raises(SchemaMismatch):
            parse_batch(payloads, record=record, schema=schema)
        return
    assert_equal(parse_batch(payloads, record=record, schema=schema), expected)


@pytest.mark.parametrize("record", RECORDS)
@given(data=st.data())
def test_a_damaged_record_is_read_or_refused_and_never_more(record: Any, data: st.DataObject) -> None:
    payload = bytearray(data.draw(BY_RECORD[record]).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        if payload:
            payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(payload[: data.draw(st.integers(0, len(payload)))])
    with contextlib.suppress(DataError):
        parse_batch([cut], record=record, schema=SCHEMA)
