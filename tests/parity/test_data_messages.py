"""Pins messages to the bytes of the original, and to the records that it ships.

The bytes were worked out from its .proto files; ``example_batch.pbtxt`` and ``inst.*`` are of
``monolith/agent_service``, ``java_hash`` follows ``datasource_utils_test``, ``UE_QTZ`` follows ``ue_compress_test.cc``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest

from monolith.core import fid
from monolith.data.records import messages
from monolith.data.records.convert import batch_to_examples, batch_to_instances, examples_to_batch, instance_to_example
from monolith.data.records.data_source import data_source_key, java_hash
from monolith.data.records.formatter import Style, format_record, parse_record
from monolith.data.records.line_id import LineIdFields
from monolith.data.records.quantized import PREFIX, decode_quantized, encode_quantized

Sample = Callable[[str], str]

INSTANCE_BYTES = bytes.fromhex(
    "0a10 0100000000000000 0200000000000000 1a08 00000000 0000803f 2a03 320101 4a0d 0a0161 1208 0300000000000000"
)
BATCH_BYTES = bytes.fromhex(
    "0a13 0a0161 120c120a0a08 6400000000000100 2001 0a15 0a095f5f4c4142454c5f5f 1208 1a060a04 0000803f 1801"
)
EXAMPLE_BYTES = bytes.fromhex(
    "0a13 0a0161 120c120a0a08 6400000000000100 1801 a2060f 11 0700000000000000 dd01 0000003f aa0604 0000803f "
    "b506 00000040"
)


def test_the_bytes_of_an_instance() -> None:
    instance = messages.Instance(fid=[1, 2], label=[0, 1])
    instance.line_id.actions.append(1)
    instance.feature.add(name="a", fid=[3])
    assert instance.SerializeToString() == INSTANCE_BYTES
    assert len(INSTANCE_BYTES) == 48
    assert messages.Instance.FromString(INSTANCE_BYTES) == instance


def test_the_bytes_of_an_example_batch() -> None:
    batch = messages.ExampleBatch(batch_size=1)
    batch.named_feature_list.add(name="a", id=1).feature.add().fid_v2_list.value.append(fid.make_v2(1, 100))
    batch.named_feature_list.add(name="__LABEL__").feature.add().float_list.value.append(1)
    assert batch.SerializeToString() == BATCH_BYTES
    assert len(BATCH_BYTES) == 46


def test_the_bytes_of_an_example() -> None:
    example = messages.Example(label=[1], instance_weight=2)
    example.named_feature.add(name="a", id=1).feature.fid_v2_list.value.append(fid.make_v2(1, 100))
    example.line_id.uid = 7
    example.line_id.sample_rate = 0.5
    assert example.SerializeToString() == EXAMPLE_BYTES
    assert len(EXAMPLE_BYTES) == 52


def test_special_strategies_are_not_packed_and_actions_are() -> None:
    line_id = messages.LineId(actions=[1, 2], pre_actions=[3, 4], special_strategies=[5, 6])
    assert line_id.SerializeToString().hex() == "32020102" + "ba01020304" + "b80205" + "b80206"


def test_numbers_of_messages_that_no_vector_covers() -> None:
    text = """
      configs { basic_config { filter_by_fid { has_fids: 1 filter_fids: 2 select_fids: 3 } } }
      configs { logical_or_config {
        x { filter_by_value { field_name: "a" op: "eq" int_operand: 1 keep_empty: true operand_filepath: "f" } }
        y { filter_by_action { has_actions: 2 } } } }
      configs { basic_config { add_label { task_label_configs { pos_actions: 1 neg_actions: 2 } negative_value: -1 } } }
      configs { basic_config { filter_by_label { thresholds: 1 } } }
    """
    config = parse_record(text, messages.TransformConfig, "pbtxt")
    assert config.SerializeToString().hex() == (
        "0a0a" + "0a08" + "0a06" + "080110021803"
        "0a1a" + "1218" + "0a10" + "2a0e" + "0a0161" + "12026571" + "2001" + "3001" + "3a0166"
        "1204" + "1202" + "0802"
        "0a0f" + "0a0d" + "220b" + "0a0408011002" + "15000080bf"
        "0a09" + "0a07" + "1a05" + "0d0000803f"
    )
    assert config.configs[2].basic_config.add_label.new_sample_rate == 1.0
    pool = messages.ChannelCache(channel_id=3)
    pool.feature_datas.add(gid=1, fids=[2], origin_cnt=4, sample_cnt=5).feature_columns.add(name="a", sorted_id=6)
    assert (
        pool.SerializeToString().hex() == "0803" + "1210" + "0801" + "120102" + "1a05" + "0a0161" + "3006" + "20042805"
    )
    assert messages.FilterValues(int64_list={"value": [1]}).SerializeToString().hex() == "12030a0101"
    described = messages.TFRecordFeatureDescription(sparse_features={"a": 1}, dense_features=["b"], label="c")
    assert described.SerializeToString().hex() == "0a050a01611001" + "120162" + "1a0163"
    made = messages.TfExample()
    made.features.feature["a"].int64_list.value.append(1)
    assert made.SerializeToString().hex() == "0a0c0a0a0a0161" + "12051a030a0101"


def test_data_source_keys() -> None:
    assert java_hash("datasource_inst") == -1487072768
    hashes = {"pc": (3571, 914176), "mobile": (-1068855134, 1250992640), "cloud": (94756405, 2782803200)}
    assert {name: (java_hash(name), data_source_key(name)) for name in hashes} == hashes
    assert data_source_key("pc").to_bytes(8, "little").hex() == "00f30d0000000000"


def test_packed_vectors() -> None:
    values = [1.1, 0.1, 3.1, 5.1, 2.2, 3.3, 4.3]
    data = encode_quantized(values)
    assert data == PREFIX + bytes.fromhex("662e 1a45 33 00 99 ff 6b a3 d6")
    np.testing.assert_allclose(decode_quantized(data), values, rtol=2e-3)


# --- the records that the original ships ------------------------------------------------------------------------------


def test_the_shipped_text_is_the_bytes(sample: Sample) -> None:
    assert parse_record(sample("inst.pbtext"), "instance").SerializeToString() == INSTANCE_BYTES


def test_the_shipped_json(sample: Sample) -> None:
    instance = parse_record(sample("inst.json"), "instance")
    assert (list(instance.fid), list(instance.label), list(instance.line_id.actions)) == ([12345], [0, 1], [1])


# D31
def test_the_shipped_dump(sample: Sample) -> None:
    instance = parse_record(sample("inst.dump"), "instance")
    assert [(feature.name, list(feature.fid)) for feature in instance.feature] == [
        ("fc_a", [1]),
        ("fc_b", [2]),
        ("", [3, 4]),
    ]
    assert (list(instance.label), list(instance.line_id.actions)) == ([0, 1], [1])


@pytest.mark.parametrize("style", get_args(Style))
@pytest.mark.parametrize("name", ["inst.dump", "inst.json", "inst.pbtext", "example_batch.pbtxt"])
def test_shipped_messages_come_back_from_every_style(sample: Sample, name: str, style: Style) -> None:
    kind = messages.ExampleBatch if name.startswith("example") else messages.Instance
    message = parse_record(sample(name), kind)
    assert parse_record(format_record(message, style), kind) == message
    assert kind.FromString(message.SerializeToString()) == message


def test_the_shipped_batch(sample: Sample) -> None:
    batch = parse_record(sample("example_batch.pbtxt"), "example_batch")
    assert (batch.batch_size, len(batch.named_feature_list)) == (51, 139)
    columns = [column for column in batch.named_feature_list if not column.name.startswith("__")]
    cells = [cell for column in columns for cell in column.feature if cell.fid_v1_list.value]
    assert (len(columns), len(cells)) == (137, 989)
    assert len({column.name for column in columns if any(cell.fid_v1_list.value for cell in column.feature)}) == 95
    rows = batch_to_examples(batch)
    assert {tuple(row.label) for row in rows} == {(0.0,)}
    again = examples_to_batch(rows)
    assert batch_to_examples(again) == rows
    # The bytes of a LineId are rewritten, with unknown fields at the end.
    for made in (batch, again):
        made.named_feature_list.remove(next(one for one in made.named_feature_list if one.name == "__LINE_ID__"))
    columns_again = {column.name: column for column in again.named_feature_list}
    assert columns_again == {column.name: column for column in batch.named_feature_list}


def test_the_shipped_line_ids_keep_fields_unknown_to_the_open_message(sample: Sample) -> None:
    batch = parse_record(sample("example_batch.pbtxt"), "example_batch")
    fleet = messages.with_line_id(
        LineIdFields.standard().extended({"a": (11, "bytes"), "t": (20, "int64"), "b": (163, "bytes")})
    )
    instances = batch_to_instances(batch)
    examples = [instance_to_example(instance) for instance in instances]
    for one in (*instances, *examples):
        one.line_id.uid = 1  # read, modify, write
        line_id = fleet.LineId.FromString(one.line_id.SerializeToString())
        assert line_id.HasField("a")
        assert line_id.t > 1_600_000_000
        assert line_id.b
        assert line_id.uid == 1
    first = instances[0].feature
    assert all(fid.slot_v2(one) > 0 for feature in first for one in feature.fid)
