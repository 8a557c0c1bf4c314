from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith.core import fid
from monolith.core.errors import ConfigError, RecordCorrupt, SchemaMismatch
from monolith.data import Schema, parse_batch
from monolith.data.records import messages
from monolith.data.records.convert import (
    batch_to_examples,
    batch_to_instances,
    example_to_instance,
    examples_to_batch,
    instance_to_example,
    merge_example_batches,
    row_major_to_examples,
)
from monolith.data.records.formatter import parse_record
from monolith.data.records.generate import RandomRows, random_batch
from monolith.data.records.line_id import LineIdFields

EXTENDED = messages.with_line_id(LineIdFields.standard().extended({"did": (11, "string")}))


def line_id_with_did() -> bytes:
    return EXTENDED.LineId(uid=7, did="d").SerializeToString()


def a_batch() -> messages.ExampleBatch:
    batch = messages.ExampleBatch(batch_size=2, data_source_key=256)
    user = batch.named_feature_list.add(name="user", type=messages.SHARED, id=1)
    user.feature.add().fid_v1_list.value.append(fid.make_v1(1, 100))
    item = batch.named_feature_list.add(name="item", id=2)
    item.feature.add().fid_v2_list.value.extend([5, 6])
    item.feature.add()
    label = batch.named_feature_list.add(name="__LABEL__")
    label.feature.add().float_list.value.extend([1, 0])
    label.feature.add().float_list.value.append(0)
    line = batch.named_feature_list.add(name="__LINE_ID__", type=messages.SHARED)
    line.feature.add().bytes_list.value.append(line_id_with_did())
    weight = batch.named_feature_list.add(name="instance_weight")
    weight.feature.add().float_list.value.append(2.5)
    weight.feature.add()
    raw = batch.named_raw_feature_list.add(name="title", type=messages.SHARED)
    raw.raw_feature.add().feature.add().bytes_value = b"t"
    return batch


def did_of(line_id: Any) -> str:
    return EXTENDED.LineId.FromString(line_id.SerializeToString()).did


def test_a_batch_becomes_rows() -> None:
    first, second = batch_to_examples(a_batch())
    assert [(named.name, named.id) for named in first.named_feature] == [("user", 1), ("item", 2)]
    assert list(first.named_feature[1].feature.fid_v2_list.value) == [5, 6]
    assert second.named_feature[0].feature == first.named_feature[0].feature
    assert second.named_feature[1].feature.WhichOneof("type") is None
    assert (list(first.label), list(second.label)) == ([1, 0], [0])
    assert (first.instance_weight, second.instance_weight) == (2.5, 0)
    assert first.data_source_key == second.data_source_key == 256
    assert second.named_raw_feature[0].raw_feature.feature[0].bytes_value == b"t"
    # Shared columns hold for every row, reserved ones too.
    assert (first.line_id.uid, second.line_id.uid) == (7, 7)
    assert (did_of(first.line_id), did_of(second.line_id)) == ("d", "d")


def test_a_batch_becomes_instances_with_v2_ids_in_named_features() -> None:
    batch = a_batch()
    del batch.named_raw_feature_list[:]
    first, second = batch_to_instances(batch)
    assert not first.fid
    assert [(feature.name, list(feature.fid)) for feature in first.feature] == [
        ("user", [fid.make_v2(1, 100)]),
        ("item", [5, 6]),
    ]
    assert [feature.name for feature in second.feature] == ["user"]
    assert (first.instance_weight, second.HasField("instance_weight")) == (2.5, False)
    assert (did_of(second.line_id), list(second.label), second.data_source_key) == ("d", [0], 256)
    flat = batch_to_instances(batch, flat_fids=True)[0]
    assert (list(flat.fid), [feature.name for feature in flat.feature]) == ([fid.make_v1(1, 100)], ["item"])


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 5), st.sampled_from([1, 2]))
def test_rows_of_a_batch_make_the_same_batch(seed: int, size: int, version: Any) -> None:
    rows = RandomRows(sparse={"a": 1, "b": 2}, dense={"d": 2}, fid_version=version)
    batch = random_batch(rows, size, seed=seed)
    assert examples_to_batch(batch_to_examples(batch)) == batch


def test_rows_that_lack_a_feature_have_an_empty_one_in_its_column() -> None:
    first, second = messages.Example(), messages.Example()
    first.named_feature.add(name="a", id=1).feature.float_value = 1
    second.named_feature.add(name="b", id=2).feature.float_value = 2
    second.line_id.uid = 3
    second.label.append(1)
    batch = examples_to_batch([first, second])
    assert [column.name for column in batch.named_feature_list] == ["a", "b", "__LABEL__", "__LINE_ID__"]
    assert [[cell.WhichOneof("type") for cell in column.feature] for column in batch.named_feature_list] == [
        ["float_value", None],
        [None, "float_value"],
        ["float_list", "float_list"],
        [None, "bytes_list"],
    ]


def test_rows_that_do_not_fit_together_are_refused() -> None:
    named = messages.Example()
    named.named_feature.add(name="a", id=1)
    other_id = messages.Example()
    other_id.named_feature.add(name="a", id=2)
    twice = messages.Example()
    twice.named_feature.add(name="a", id=1)
    twice.named_feature.add(name="a", id=1)
    with pytest.raises(SchemaMismatch, match="row 1: feature 'a' has id 2, in earlier rows 1"):
        examples_to_batch([named, other_id])
    with pytest.raises(SchemaMismatch, match="row 1: feature 'a' is there twice"):
        examples_to_batch([named, twice])
    with pytest.raises(SchemaMismatch, match="row 1 is from data source 256"):
        examples_to_batch([named, messages.Example(data_source_key=256)])
    with pytest.raises(ConfigError, match="row 1 has another LineId"):
        examples_to_batch([named, EXTENDED.Example()])
    with pytest.raises(SchemaMismatch, match="examples is empty"):
        examples_to_batch([])


def test_a_row_major_batch_gives_shared_features_to_every_row() -> None:
    batch = messages.ExampleBatchRowMajor()
    batch.shared_feature.add(name="user").feature.int64_value = 1
    batch.shared_feature.add(name="__LINE_ID__").feature.bytes_list.value.append(line_id_with_did())
    batch.shared_raw_feature.add(name="raw")
    batch.example.add(label=[1]).named_feature.add(name="item")
    batch.example.add().named_feature.add(name="user").feature.int64_value = 2
    first, second = row_major_to_examples(batch)
    assert [named.name for named in first.named_feature] == ["user", "item"]
    assert [named.feature.int64_value for named in second.named_feature] == [2]
    assert (did_of(first.line_id), did_of(second.line_id)) == ("d", "d")
    assert first.named_raw_feature[0].name == "raw"
    assert list(first.label) == [1]
    assert not batch.example[0].HasField("line_id")


def test_an_instance_becomes_an_example_and_comes_back() -> None:
    instance = messages.Instance(
        fid=[fid.make_v1(3, 1), fid.make_v1(2, 1), fid.make_v1(3, 2)],
        label=[1, 0],
        instance_weight=2,
        data_source_key=512,
    )
    instance.line_id.ParseFromString(line_id_with_did())
    instance.feature.add(name="b", float_value=[1.5])
    instance.feature.add(name="c").fid_list.add(value=[4, 5])
    example = instance_to_example(instance)
    assert [(named.name, named.id) for named in example.named_feature] == [
        ("fc_slot_3", 0),
        ("fc_slot_2", 1),
        ("b", 2),
        ("c", 3),
    ]
    assert list(example.named_feature[0].feature.fid_v1_list.value) == [fid.make_v1(3, 1), fid.make_v1(3, 2)]
    back = example_to_instance(example)
    assert sorted(back.fid) == sorted(instance.fid)
    del back.fid[:], instance.fid[:]
    assert back == instance


def test_the_other_fields_of_an_instance_become_features() -> None:
    instance = messages.Instance(value=[1, 2], dense=[3], next_fid=[4])
    instance.label_tag.add(key=5, val=6)
    example = instance_to_example(instance)
    found = {named.name: named.feature for named in example.named_feature}
    assert list(found["value"].float_list.value) == [1, 2]
    assert list(found["dense"].float_list.value) == [3]
    assert list(found["next_fid"].fid_v1_list.value) == [4]
    assert list(found["label_tag_key"].int64_list.value) == [5]
    assert list(found["label_tag_value"].float_list.value) == [6]
    assert (example.instance_weight, example.HasField("line_id")) == (1.0, False)


@pytest.mark.parametrize(
    ("arm", "field"),
    [
        ("fid_v1_list { value: 18014398509481984 }", "fid: 281474976710656"),
        ("fid_v2_list { value: 5 }", "fid: 5"),
        ("float_list { value: 0.5 }", "float_value: 0.5"),
        ("double_list { value: 0.5 }", "float_value: 0.5"),
        ("int64_list { value: -5 }", "int64_value: -5"),
        ("bytes_list { value: 'x' }", "bytes_value: 'x'"),
        (
            "fid_v1_lists { list { value: 18014398509481984 } list { } }",
            "fid_list { value: 281474976710656 } fid_list {}",
        ),
        ("fid_v2_lists { list { value: 5 } }", "fid_list { value: 5 }"),
        ("float_lists { list { value: 0.5 } }", "float_list { value: 0.5 }"),
        ("double_lists { list { value: 0.5 } }", "float_list { value: 0.5 }"),
        ("int64_lists { list { value: 5 } }", "int64_list { value: 5 }"),
        ("bytes_lists { list { value: 'x' } }", "bytes_list { value: 'x' }"),
        ("int64_value: 5", "int64_value: 5"),
        ("float_value: 0.5", "float_value: 0.5"),
        ("double_value: 0.5", "float_value: 0.5"),
        ("bytes_value: 'x'", "bytes_value: 'x'"),
    ],
)
def test_every_arm_has_its_place_in_an_instance(arm: str, field: str) -> None:
    example = parse_record(f"named_feature {{ name: 'a' feature {{ {arm} }} }}", "example", "pbtxt")
    expected = parse_record(f"feature {{ name: 'a' {field} }}", "instance", "pbtxt")
    assert example_to_instance(example, flat_fids=False) == expected


def test_reserved_features_of_an_example_are_lifted() -> None:
    example = messages.Example(label=[1])
    example.named_feature.add(name="__LABEL__").feature.double_list.value.append(2)
    example.named_feature.add(name="__LINE_ID__").feature.bytes_value = line_id_with_did()
    example.named_feature.add(name="instance_weight").feature.float_value = 3
    example.named_feature.add(name="a").feature.float_value = 1
    instance = example_to_instance(example)
    assert (list(instance.label), instance.instance_weight, did_of(instance.line_id)) == ([1, 2], 3, "d")
    assert [feature.name for feature in instance.feature] == ["a"]
    assert len(example.named_feature) == 4


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("named_feature_list { name: 'a' feature {} } batch_size: 2", "column 'a' has 1 features, the batch 2 rows"),
        ("named_raw_feature_list { name: 'a' } batch_size: 2", "column 'a' has 0 features"),
        ("named_feature_list { name: 'a' } named_feature_list { name: 'a' }", "column 'a' is there twice"),
        (
            "named_feature_list { name: '__LABEL__' feature { int64_value: 1 } } batch_size: 1",
            "row 0: __LABEL__ holds a int64_value",
        ),
        (
            "named_feature_list { name: '__LINE_ID__' feature { float_value: 1 } } batch_size: 1",
            "row 0: __LINE_ID__ holds a float_value",
        ),
    ],
)
def test_a_batch_that_contradicts_itself_is_refused(text: str, problem: str) -> None:
    with pytest.raises(SchemaMismatch, match=problem):
        batch_to_examples(parse_record(text, "example_batch", "pbtxt"))


def test_a_damaged_batch_is_refused() -> None:
    batch = a_batch()
    batch.named_feature_list[3].feature[0].bytes_list.value[0] = b"\xff"
    with pytest.raises(RecordCorrupt, match="row 0: __LINE_ID__: 1 bytes are no LineId"):
        batch_to_examples(batch)
    for size in (-1, 2**31 - 1):
        with pytest.raises(RecordCorrupt, match=f"claims {size} rows"):
            batch_to_examples(messages.ExampleBatch(batch_size=size))


def test_a_value_without_a_field_in_the_target_is_refused() -> None:
    example = messages.Example()
    example.named_raw_feature.add(name="title")
    with pytest.raises(SchemaMismatch, match="raw features such as 'title'"):
        example_to_instance(example)
    with pytest.raises(SchemaMismatch, match="instance_weight is 0"):
        instance_to_example(messages.Instance(instance_weight=0))
    instance = messages.Instance(fid=[fid.make_v1(3, 1)])
    instance.feature.add(name="fc_slot_3", fid=[1])
    with pytest.raises(SchemaMismatch, match="'fc_slot_3' is there twice"):
        instance_to_example(instance)
    instance = messages.Instance()
    instance.feature.add(name="a", fid=[1], float_value=[1])
    with pytest.raises(SchemaMismatch, match="feature 'a' holds both fid and float_value"):
        instance_to_example(instance)


def test_a_family_is_kept() -> None:
    example = EXTENDED.Example()
    example.line_id.did = "d"
    assert example_to_instance(example).line_id.did == "d"
    assert instance_to_example(example_to_instance(example)).line_id.did == "d"
    assert batch_to_examples(examples_to_batch([example]))[0].line_id.did == "d"


# --- columns of one request in several messages ---


def a_part(name: str, number: int, ids: list[list[int]], *, old: bool = False) -> messages.ExampleBatch:
    batch = messages.ExampleBatch(batch_size=len(ids))
    column = batch.named_feature_list.add(name=name, id=number)
    for row in ids:
        feature = column.feature.add()
        (feature.fid_v1_list if old else feature.fid_v2_list).value.extend(row)
    return batch


def test_merged_batches_are_parsed_like_one_with_the_slots_of_their_columns() -> None:
    users = a_part("user", 12, [[fid.as_unsigned(fid.make_v1(700, 5))], [fid.make_v1(3, 6)]], old=True)
    items = a_part("item", 300, [[7, fid.make_v2(9, 8)], []])
    merged = merge_example_batches([users, items], slot_from_id=True)
    schema = Schema(sparse=["user", "item"], labels=0)
    batch = parse_batch([merged.SerializeToString()], record="example_batch", schema=schema)
    assert batch.ids["user"].tolist() == [[fid.make_v2(12, 5)], [fid.make_v2(12, 6)]]
    assert batch.ids["item"].tolist() == [[fid.make_v2(300, 7), fid.make_v2(300, 8)], []]
    plain = merge_example_batches([users, items])
    assert [column.name for column in plain.named_feature_list] == ["user", "item"]
    assert plain.named_feature_list[0] == users.named_feature_list[0]
    assert len(users.named_feature_list) == 1, "the parts stay as they are"


def test_batches_of_different_requests_are_not_merged() -> None:
    with pytest.raises(SchemaMismatch, match="batch_size of batch 1 is 1, expected 2"):
        merge_example_batches([a_part("user", 1, [[1], [2]]), a_part("item", 2, [[3]])])
    with pytest.raises(SchemaMismatch, match="column 'user' is there twice"):
        merge_example_batches([a_part("user", 1, [[1]]), a_part("user", 1, [[1]])])
    with pytest.raises(SchemaMismatch, match="id of column 'user' is 40000, expected a slot, 0 to 32767"):
        merge_example_batches([a_part("user", 40000, [[1]])], slot_from_id=True)
    with pytest.raises(SchemaMismatch, match="batches is empty"):
        merge_example_batches([])
