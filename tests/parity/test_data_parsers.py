"""The original's parser vectors: the batches of its sample records. Numbers in brackets are those of the list."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from monolith.core import fid
from monolith.core.errors import SchemaMismatch
from monolith.data import Batch, DenseFeature, Schema, SparseFeature, parse_batch
from monolith.data.records.messages import Example, ExampleBatch, Instance, LineId, TfExample
from monolith.data.transforms import ragged

INVALID = float(np.finfo(np.float32).min)


def sample_instance() -> Any:
    """The sample of vector 14."""
    instance = Instance()
    instance.fid.extend(number << 54 | number for number in range(10))
    instance.feature.add(name="fidv2").fid.extend(100 << 48 | number for number in range(10))
    instance.feature.add(name="ue").float_value.extend(number * 1e-5 for number in range(16))
    instance.feature.add(name="int64feature").int64_value.append(100)
    instance.feature.add(name="string_feature").bytes_value.append(b"test_string")
    instance.label.extend([1.1, 2.2, 3.3])
    instance.line_id.uid = 110
    instance.line_id.sample_rate = 0.5
    instance.line_id.actions.extend([0, 100])
    return instance


def parse(message: Any, record: Any, schema: Schema) -> Batch:
    return parse_batch([message.SerializeToString()], record=record, schema=schema)


def test_the_sample_instance() -> None:  # [14]
    schema = Schema(
        sparse=["slot_1", SparseFeature("fidv2")],
        dense=[
            DenseFeature("ue", 16),
            DenseFeature("int64feature", 1, "int64"),
            DenseFeature("string_feature", 1, "bytes"),
            DenseFeature("no_float", 2),
            DenseFeature("no_int", 1, "int64"),
            DenseFeature("no_string", 1, "bytes"),
        ],
        labels=3,
        extras={"actions": 2, "sample_rate": 1, "user_id": 1},
    )
    batch = parse(sample_instance(), "instance", schema)
    assert batch["slot_1"].tolist() == [[1 << 48 | 1]], "v2 by default, whatever else is asked for"
    assert batch["fidv2"].tolist() == [[100 << 48 | number for number in range(10)]]
    assert np.allclose(batch["ue"], [[number * 1e-5 for number in range(16)]])
    assert batch["int64feature"].tolist() == [[100]]
    assert batch["string_feature"].tolist() == [b"test_string"]
    assert batch["no_float"].tolist() == [[0, 0]]
    assert batch["no_int"].tolist() == [[0]]
    assert batch["no_string"].tolist() == [b""]
    assert np.allclose(batch.label, [[1.1, 2.2, 3.3]])
    assert batch.uid.tolist() == [110]
    assert batch.sample_rate.tolist() == [0.5]
    assert batch.actions.tolist() == [[0, 100]]
    assert batch["actions"].tolist() == [[0, 100]]
    assert batch["user_id"].tolist() == [b""]
    as_is = parse(sample_instance(), "instance", Schema(sparse=["slot_1"], fid_version="as_is"))
    assert as_is["slot_1"].tolist() == [[1 << 54 | 1]]


def test_concat_of_slots() -> None:  # [15]
    schema = Schema(sparse=["slot_0", "slot_1", "fidv2"])
    batch = parse(sample_instance(), "instance", schema)
    joined = ragged.concat([batch[name] for name in ("slot_0", "slot_1", "fidv2")])
    assert joined.offsets.tolist() == [0, 1, 2, 12]
    assert joined.values.tolist() == [0, 1 << 48 | 1, *(100 << 48 | number for number in range(10))]


def test_rows_of_values() -> None:  # [32]
    offsets = np.array([0, 4, 4, 7, 8, 8])
    assert ragged.row_ids(offsets).tolist() == [0, 0, 0, 0, 2, 2, 2, 3]


def test_tf_example_values_become_ids() -> None:  # [13]
    example = TfExample()
    feature = example.features.feature
    feature["sparse_int"].int64_list.value.extend([5, 2**48 + 1])
    feature["sparse_float"].float_list.value.extend([0.0, 1.0, -8.0, 1000.5])
    feature["sparse_text"].bytes_list.value.append(b"ios")
    feature["price"].float_list.value.append(2.5)
    feature["label"].float_list.value.append(1.0)
    schema = Schema(
        sparse=[
            SparseFeature("sparse_int", 10, value_type="slot48"),
            SparseFeature("sparse_float", 11, value_type="bucket"),
            SparseFeature("sparse_text", 52, value_type="fid"),
        ],
        dense=["price", "missing"],
    )
    batch = parse(example, "tf_example", schema)
    assert batch["sparse_int"].tolist() == [[10 << 48 | 5, 10 << 48 | 1]]
    assert batch["sparse_float"].tolist() == [[11 << 48 | each for each in (0, 1, 3, 9)]]
    assert batch["sparse_text"].tolist() == [[fid.from_value(52, "ios")]]
    assert batch["price"].tolist() == [[2.5]]
    assert batch["missing"].tolist() == [[0]]
    assert batch.label.tolist() == [[1]]
    assert batch.weight.tolist() == [1]


def test_names_of_labels_and_weight_are_free_in_a_tf_example() -> None:
    example = TfExample()
    feature = example.features.feature
    feature["click"].int64_list.value.append(1)
    feature["buy"].float_list.value.append(0.5)
    feature["w"].float_list.value.append(2)
    feature["__UID__"].int64_list.value.append(77)
    feature["__REQ_TIME__"].int64_list.value.append(1_700_000_000)
    feature["__SAMPLE_RATE__"].float_list.value.append(0.25)
    feature["__ACTIONS__"].int64_list.value.extend([3, 4])
    feature["__DEVICE_TYPE__"].bytes_list.value.append(b"ios")
    schema = Schema(label_features=["click", "absent", "buy"], weight_feature="w", extras=["device_type"])
    batch = parse(example, "tf_example", schema)
    assert batch.label.tolist() == [[1, 0, 0.5]]
    assert batch.label_mask.tolist() == [[True, False, True]]
    assert batch.weight.tolist() == [2]
    assert batch.uid.tolist() == [77]
    assert batch.event_time_s.tolist() == [1_700_000_000]
    assert batch.sample_rate.tolist() == [0.25]
    assert batch.actions.tolist() == [[3, 4]]
    assert batch["device_type"].tolist() == [b"ios"]
    with pytest.raises(SchemaMismatch, match=r"float is 0.5"):
        parse(example, "tf_example", Schema(sparse=["buy"]))


@pytest.mark.parametrize("record", ["instance", "example", "example_batch"])
def test_missing_values_are_the_same_in_every_format(record: str) -> None:
    messages: dict[str, Any] = {
        "instance": Instance(),
        "example": Example(),
        "example_batch": ExampleBatch(batch_size=1),
    }
    schema = Schema(sparse=["slot_1"], dense=[DenseFeature("x", 2, default=-1)], labels=2, extras=["chnid", "is_draw"])
    batch = parse(messages[record], record, schema)
    assert batch["slot_1"].tolist() == [[]]
    assert batch["x"].tolist() == [[-1, -1]]
    assert batch.label.tolist() == [[0, 0]]
    assert batch.label_mask.tolist() == [[False, False]]
    assert batch.weight.tolist() == [1]
    assert batch.sample_rate.tolist() == [1]
    assert batch["chnid"].tolist() == batch["is_draw"].tolist() == [[0]]
    assert (batch.uid[0], batch.event_time_s[0]) == (0, 0)


def test_the_lowest_float_and_nan_are_missing_labels() -> None:
    example = Example(label=[INVALID, float("nan"), 1, -1])
    batch = parse(example, "example", Schema(labels=5, missing_label=-7))
    assert batch.label.tolist() == [[-7, -7, 1, -1, -7]]
    assert batch.label_mask.tolist() == [[False, False, True, True, False]]


def test_shared_labels_and_line_ids_fill_every_row() -> None:
    batch = ExampleBatch(batch_size=3)
    line = LineId(uid=9, sample_rate=0.5)
    batch.named_feature_list.add(name="__LINE_ID__", type=1).feature.add().bytes_list.value.append(
        line.SerializeToString()
    )
    batch.named_feature_list.add(name="__LABEL__", type=1).feature.add().float_list.value.append(1)
    batch.named_feature_list.add(name="instance_weight", type=1).feature.add().float_list.value.append(3)
    parsed = parse(batch, "example_batch", Schema())
    assert parsed.uid.tolist() == [9, 9, 9]
    assert parsed.label.tolist() == [[1], [1], [1]]
    assert parsed.weight.tolist() == [3, 3, 3]
    assert parsed.sample_rate.tolist() == [0.5] * 3
