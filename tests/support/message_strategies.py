"""Random messages of every record format, for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from monolith.data.records.messages import (
    Example,
    ExampleBatch,
    ExampleBatchRowMajor,
    Instance,
    LineId,
    TfExample,
)

NAMES = ["a", "b", "slot_3", "fc_slot_9", "user_id", "unwanted", "value"]
UINT64 = st.integers(0, 2**64 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT = st.floats(width=32, allow_nan=False)
DOUBLE = st.floats(-1e30, 1e30)
TEXT = st.binary(max_size=12)
VALUES: dict[str, Any] = {"fid": UINT64, "float": FLOAT, "double": DOUBLE, "int64": INT64, "bytes": TEXT}
ARMS = {
    "fid_v1_list": "fid",
    "fid_v2_list": "fid",
    "float_list": "float",
    "double_list": "double",
    "int64_list": "int64",
    "bytes_list": "bytes",
}


def lists(of: str, most: int = 3) -> st.SearchStrategy[list[Any]]:
    return st.lists(VALUES[of], max_size=most)


@st.composite
def line_ids(draw: st.DrawFn) -> Any:
    line = LineId()
    if draw(st.booleans()):
        line.uid = draw(UINT64)
    if draw(st.booleans()):
        line.req_time = draw(INT64)
    if draw(st.booleans()):
        line.sample_rate = draw(st.floats(0.0078125, 1, width=32))
    line.actions.extend(draw(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3)))
    line.special_strategies.extend(draw(st.lists(st.integers(0, 200), max_size=2)))
    if draw(st.booleans()):
        line.device_type = draw(st.text(max_size=5))
    return line


@st.composite
def example_features(draw: st.DrawFn, feature: Any) -> None:
    """Fill one arm of an Example's feature, or none."""
    arm = draw(
        st.sampled_from([None, *ARMS, *(f"{arm}s" for arm in ARMS), "int64_value", "float_value", "bytes_value"])
    )
    if arm is None:
        return
    if arm.endswith("_value"):
        setattr(feature, arm, draw(VALUES[arm.removesuffix("_value")]))
    elif arm.endswith("lists"):
        getattr(feature, arm).SetInParent()
        for values in draw(st.lists(lists(ARMS[arm[:-1]], 2), max_size=2)):
            getattr(feature, arm).list.add().value.extend(values)
    else:
        getattr(feature, arm).SetInParent()
        getattr(feature, arm).value.extend(draw(lists(ARMS[arm])))


@st.composite
def examples(draw: st.DrawFn) -> Any:
    example = Example()
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=6)):
        named = example.named_feature.add(name=name)
        draw(example_features(named.feature))
    if draw(st.booleans()):
        named = example.named_feature.add(name="__LABEL__")
        named.feature.float_list.value.extend(draw(lists("float")))
    if draw(st.booleans()):
        named = example.named_feature.add(name="__LINE_ID__")
        named.feature.bytes_list.value.append(draw(line_ids()).SerializeToString())
    if draw(st.booleans()):
        example.line_id.CopyFrom(draw(line_ids()))
    example.label.extend(draw(lists("float")))
    if draw(st.booleans()):
        example.instance_weight = draw(st.floats(0, 10, width=32))
    return example


@st.composite
def example_batches(draw: st.DrawFn) -> Any:
    batch = ExampleBatch()
    rows = draw(st.integers(1, 4))
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=True)):
        is_shared = draw(st.booleans())
        column = batch.named_feature_list.add(name=name, type=1 if is_shared else 0)
        for _ in range(1 if is_shared else rows):
            draw(example_features(column.feature.add()))
    if draw(st.booleans()):
        column = batch.named_feature_list.add(name="__LABEL__")
        for _ in range(rows):
            column.feature.add().float_list.value.extend(draw(lists("float")))
    if draw(st.booleans()):
        column = batch.named_feature_list.add(name="__LINE_ID__", type=1 if draw(st.booleans()) else 0)
        for _ in range(1 if column.type else rows):
            column.feature.add().bytes_list.value.append(draw(line_ids()).SerializeToString())
    if draw(st.booleans()):
        column = batch.named_feature_list.add(name="instance_weight")
        for _ in range(rows):
            column.feature.add().float_list.value.append(draw(st.floats(0, 10, width=32)))
    batch.batch_size = rows
    return batch


@st.composite
def row_major_batches(draw: st.DrawFn) -> Any:
    batch = ExampleBatchRowMajor()
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=3)):
        draw(example_features(batch.shared_feature.add(name=name).feature))
    for example in draw(st.lists(examples(), max_size=3)):
        batch.example.add().CopyFrom(example)
    return batch


@st.composite
def instances(draw: st.DrawFn) -> Any:
    instance = Instance()
    slots = st.sampled_from([0, 3, 9, 600])
    fids = draw(st.lists(st.tuples(slots, st.integers(0, 2**54 - 1)), max_size=6))
    instance.fid.extend(slot << 54 | signature for slot, signature in fids)
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=4)):
        feature = instance.feature.add(name=name)
        kind = draw(st.sampled_from(["fid", "float_value", "int64_value", "bytes_value", "fid_list", "float_list"]))
        if kind.endswith("_list"):
            for values in draw(st.lists(lists(kind.removesuffix("_list")), max_size=2)):
                getattr(feature, kind).add().value.extend(values)
        else:
            getattr(feature, kind).extend(draw(lists(kind.removesuffix("_value"))))
    instance.label.extend(draw(lists("float")))
    instance.value.extend(draw(lists("float")))
    if draw(st.booleans()):
        instance.instance_weight = draw(st.floats(0, 10, width=32))
    if draw(st.booleans()):
        instance.line_id.CopyFrom(draw(line_ids()))
    return instance


@st.composite
def tf_examples(draw: st.DrawFn) -> Any:
    example = TfExample()
    for name in draw(st.lists(st.sampled_from([*NAMES, "label"]), max_size=5, unique=True)):
        feature = example.features.feature[name]
        kind = draw(st.sampled_from(["int64", "float"] if name == "label" else ["int64", "float", "bytes"]))
        getattr(feature, f"{kind}_list").value.extend(draw(lists(kind)))
    return example


BY_RECORD: dict[str, Any] = {
    "instance": instances(),
    "example": examples(),
    "example_batch": example_batches(),
    "example_batch_row_major": row_major_batches(),
    "tf_example": tf_examples(),
}
