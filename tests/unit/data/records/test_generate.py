from __future__ import annotations

from typing import Any

import pytest

from monolith.core import fid
from monolith.core.errors import ConfigError
from monolith.data.feature_list import FeatureList
from monolith.data.records import messages
from monolith.data.records.convert import batch_to_examples, row_major_to_examples
from monolith.data.records.generate import (
    RandomRows,
    mark_shared,
    random_batch,
    random_example,
    random_example_batch,
    random_instance,
    write_random_records,
)
from monolith.data.records.line_id import LineIdFields

EXTENDED = messages.with_line_id(
    LineIdFields.standard().extended({"did": (11, "string"), "vids": (163, "repeated int64")})
)
ROWS = RandomRows(
    sparse={"uid": 1, "item": 200, "context": 3},
    dense={"emb": 4},
    shared={"uid"},
    labels=2,
    actions=(1, 5),
    line_id={"chnid": 1, "user_id": 1, "is_draw": 1, "pre_actions": 2},
)
KINDS: list[Any] = ["instance", "example", "example_batch", "example_batch_row_major", "tf_example"]


class Payloads(list[bytes]):
    def write(self, payload: bytes) -> None:
        self.append(payload)


def test_an_instance_has_each_slots_vocabulary() -> None:
    instance = random_instance([7, 8], [2, 3], seed=1)
    assert [fid.slot_v1(one) for one in instance.fid] == [7, 7, 8, 8, 8]
    signatures = [fid.signature_v1(one) for one in instance.fid]
    assert all(1 <= one <= 2 for one in signatures[:2])
    assert all(4 <= one <= 6 for one in signatures[2:])
    assert {fid.slot_v1(one) for one in random_instance(seed=1).fid} == {1, 2, 3, 4, 5, 6}
    assert len(random_instance(seed=1).fid) == 30
    assert fid.slot_v1(random_instance([1023], [1], seed=1).fid[0]) == 1023


def test_an_instance_of_slots_and_vocabularies_that_do_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="1 slots"):
        random_instance([1], [2, 3], seed=0)
    with pytest.raises(ConfigError, match="1024"):
        random_instance([1024], [2], seed=0)


@pytest.mark.parametrize("record", KINDS)
def test_the_seed_decides_every_byte(record: Any) -> None:
    made = [Payloads(), Payloads(), Payloads()]
    for payloads, seed in zip(made, (5, 5, 6), strict=True):
        write_random_records(payloads, record, ROWS, 20, seed=seed, batch_size=8)
    assert made[0] == made[1]
    assert made[0] != made[2]


@pytest.mark.parametrize("record", KINDS)
def test_a_stream_has_the_rows_asked_for(record: Any) -> None:
    payloads = Payloads()
    count = write_random_records(payloads, record, ROWS, 20, seed=5, batch_size=8)
    assert count == len(payloads) == (3 if "batch" in record else 20)
    records: list[Any] = [messages.parse_message(messages.record_class(record), payload) for payload in payloads]
    if record == "example_batch":
        assert [len(batch_to_examples(batch)) for batch in records] == [8, 8, 4]
    elif record == "example_batch_row_major":
        assert [len(row_major_to_examples(batch)) for batch in records] == [8, 8, 4]
    elif record == "tf_example":
        assert all(len(one.features.feature["label"].float_list.value) == 2 for one in records)
    else:
        assert all(len(one.label) == 2 for one in records)


def test_rows_have_the_requested_features() -> None:
    example = random_example(
        RandomRows(sparse={"a": 5, "b": 6}, dense={"d": 3}, drop_rate=0, max_ids=2, sample_rate=0.25), seed=3
    )
    features = {named.name: named.feature for named in example.named_feature}
    assert [fid.slot_v2(one) for one in features["a"].fid_v2_list.value][:1] == [5]
    assert 1 <= len(features["b"].fid_v2_list.value) <= 2
    assert len(features["d"].float_list.value) == 3
    assert example.line_id.sample_rate == 0.25
    assert 1_700_000_000 - 1000 <= example.line_id.req_time < 1_700_000_000
    assert example.line_id.actions[0] in (1, 2)
    assert not random_example(RandomRows(sparse={"a": 5}, drop_rate=1), seed=3).named_feature


def test_ids_of_version_1_are_flat_in_an_instance() -> None:
    payloads = Payloads()
    rows = RandomRows(sparse={"a": 1023}, fid_version=1, drop_rate=0, max_ids=1)
    write_random_records(payloads, "instance", rows, 1, seed=0)
    instance = messages.Instance.FromString(payloads[0])
    assert [fid.slot_v1(one) for one in instance.fid] == [1023]
    assert not instance.feature


def test_about_half_of_the_features_are_dropped() -> None:
    rows = RandomRows(sparse={f"f{slot}": slot for slot in range(1, 101)})
    assert 25 < len(random_example(rows, seed=11).named_feature) < 75


def test_shared_features_of_a_batch_are_stored_once() -> None:
    batch = random_batch(ROWS, 8, seed=2)
    columns = {column.name: column for column in batch.named_feature_list}
    assert (columns["uid"].type, len(columns["uid"].feature)) == (messages.SHARED, 1)
    assert (columns["item"].type, len(columns["item"].feature)) == (messages.INDIVIDUAL, 8)
    assert {"__LABEL__", "__LINE_ID__", "instance_weight", "emb"} <= set(columns)


def test_extra_line_id_fields_are_filled() -> None:
    rows = RandomRows(sparse={}, line_id={"did": 1, "vids": 3, "device_type": 1, "rank": 1, "is_draw": 1})
    line_id = random_example(rows, seed=1, messages=EXTENDED).line_id
    assert (len(line_id.did), len(line_id.vids), len(line_id.device_type)) == (8, 3, 8)
    with pytest.raises(ConfigError, match="no field 'did'"):
        random_example(rows, seed=1)


@pytest.mark.parametrize(
    "settings",
    [
        {"sparse": {"a": 1024}, "fid_version": 1},
        {"sparse": {"a": 32768}},
        {"sparse": {"a": 1}, "dense": {"a": 1}},
        {"sparse": {"a": 1}, "shared": {"b"}},
        {"sparse": {"a": 1}, "drop_rate": 1.5},
        {"sparse": {"a": 1}, "max_ids": 0},
        {"sparse": {"a": 1}, "dense": {"d": 0}},
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RandomRows(**settings)


LISTED = FeatureList.parse(
    "feature_name=fc_user_id; slot=1; feature_version=2\n"
    "feature_name=fc_goods_name; slot=40; method=VectorTopString; args=3,x; feature_version=2\n"
    "feature_name=fc_none_name; slot=41; method=VectorTopString; args=0; feature_version=2\n"
    "feature_name=fc_price; slot=42; feature_version=2\n"
    "feature_name=fc_skipped_id; slot=43; feature_version=2\n"
)


def test_a_request_is_made_from_a_feature_list() -> None:
    batch = random_example_batch(LISTED, 50, seed=4, now_s=5000, skip=["skipped"])
    columns = {column.name: column for column in batch.named_feature_list}
    assert list(columns) == ["fc_user_id", "fc_goods_name", "fc_none_name", "__LINE_ID__"]
    assert all(len(column.feature) == 50 for column in columns.values())
    assert {len(one.fid_v2_list.value) for one in columns["fc_user_id"].feature} == {1}
    assert {len(one.fid_v2_list.value) for one in columns["fc_goods_name"].feature} == {1, 2, 3}
    assert {len(one.fid_v2_list.value) for one in columns["fc_none_name"].feature} == {0}
    slots = {fid.slot_v2(one) for cell in columns["fc_goods_name"].feature for one in cell.fid_v2_list.value}
    assert slots == {40}
    for row in batch_to_examples(batch):
        assert row.line_id.sample_rate == pytest.approx(0.001)
        assert 4000 <= row.line_id.req_time < 5000
        first, second = row.line_id.actions
        assert 1 <= first <= 3 <= second <= 5


def test_a_request_is_made_from_names_and_slots() -> None:
    batch = random_example_batch({"price": 42}, 2, seed=4)
    assert [column.name for column in batch.named_feature_list] == ["price", "__LINE_ID__"]
    assert batch == random_example_batch({"price": 42}, 2, seed=4)
    assert "fc_price" in [
        column.name for column in random_example_batch(LISTED, 2, seed=4, only=[""]).named_feature_list
    ]
    with pytest.raises(ConfigError, match="none of 1 features is left"):
        random_example_batch({"price": 42}, 2, seed=4, skip=["p"])
    with pytest.raises(ConfigError, match="batch_size"):
        random_example_batch({"price": 42}, 0, seed=4)


def test_marking_a_column_as_shared_repeats_its_first_feature() -> None:
    batch = random_example_batch({"user_id": 1, "item_id": 2}, 3, seed=4)
    first = batch.named_feature_list[0].feature[0].fid_v2_list.value[0]
    mark_shared(batch, ["user_id", "absent"])
    user, item = batch.named_feature_list[:2]
    assert user.type == messages.SHARED
    assert [one.fid_v2_list.value[0] for one in user.feature] == [first] * 3
    assert item.type == messages.INDIVIDUAL
    mark_shared(batch, ["user_id"], stored_once=True)
    assert len(batch.named_feature_list[0].feature) == 1
    assert len(batch_to_examples(batch)) == 3
