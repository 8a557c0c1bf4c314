"""Golden vectors of row transforms: filters, labels, sampling and the transform DSL, of the original's own tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolith import _native
from monolith.core import fid
from monolith.data.batch import Ragged
from monolith.data.records.line_id import LineIdFields
from monolith.data.records.messages import FilterValues, with_line_id
from monolith.data.transforms import (
    INVALID_LABEL,
    AddLabel,
    BuildContext,
    Compose,
    FilterByAction,
    FilterByFeatureValue,
    FilterByFids,
    FilterByLabel,
    FilterByValue,
    InstanceReweight,
    LabelNormalization,
    LabelUpperBound,
    LogicalOr,
    MultiLabelGen,
    NegativeSample,
    ScatterLabel,
    Transform,
    UseFieldAsLabel,
    parse_transform_config,
)
from monolith.data.transforms.ragged import concat, gen_fid_mask, map_id, row_ids

# The names that the original's tests use and the open LineId lacks.
FIELDS = LineIdFields.standard().extended(
    {
        "did": (11, "string"),
        "read_count": (60, "int32"),
        "video_play_time": (61, "int32"),
        "chnids": (62, "repeated int64"),
    }
)
MESSAGES = with_line_id(FIELDS)
INVALID = np.float32(INVALID_LABEL)


def run(transform: Transform, messages: Sequence[Any], record: str = "example", seed: int = 0) -> list[Any]:
    columns = _native.Columns()
    parser = _native.RowParser(record, columns, keep_all=True, line_fields=FIELDS.native(), seed=seed)
    rows = parser.parse(_native.Records([message.SerializeToString() for message in messages]))
    context = BuildContext(columns=columns, line_fields=FIELDS.native(), seed=seed)
    transform.build(context).run(rows)
    return [MESSAGES.Example.FromString(payload) for payload in _native.encode_examples(rows, columns)]


def example(label: Sequence[float] = (), **line_id: Any) -> Any:
    message = MESSAGES.Example(label=label)
    for name, value in line_id.items():
        if isinstance(value, list):
            getattr(message.line_id, name).extend(value)
        else:
            setattr(message.line_id, name, value)
    return message


def instance(fids: Sequence[int] = (), label: Sequence[float] = (), **line_id: Any) -> Any:
    message = MESSAGES.Instance(fid=[fid.as_unsigned(value) for value in fids], label=label)
    for name, value in line_id.items():
        if isinstance(value, list):
            getattr(message.line_id, name).extend(value)
        else:
            setattr(message.line_id, name, value)
    return message


def keeps(transform: Transform, message: Any, record: str = "example") -> bool:
    return len(run(transform, [message], record)) == 1


# --- 7, 8, 33: filter_by_fids ---

A, B, C = 6436927642569553426, 6457882839108881377, 6461985998153810495
NOW = 1_700_000_000


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, True),
        ({"filter_fids": [A]}, False),
        ({"filter_fids": [1, C]}, False),
        ({"filter_fids": [1]}, True),
        ({"has_fids": [A, 1]}, True),
        ({"has_fids": [1]}, False),
        ({"select_fids": [A, B]}, True),
        ({"select_fids": [A, B, C]}, True),
        ({"select_fids": [A, 1]}, False),
        ({"has_actions": [-1]}, True),
        ({"has_actions": [1, 5]}, True),
        ({"has_actions": [2]}, False),
        ({"req_time_min": NOW}, True),
        ({"req_time_min": NOW + 1}, False),
        ({"has_fids": [A], "select_fids": [B], "has_actions": [1], "req_time_min": NOW}, True),
        ({"has_fids": [A], "filter_fids": [B]}, False),
    ],
)
@pytest.mark.parametrize("record", ["instance", "example"])
def test_vector_7_filter_by_fids(settings: dict[str, Any], kept: bool, record: str) -> None:
    if record == "instance":
        message = instance([A, B, C], actions=[-1, 1], req_time=NOW)
    else:
        message = example(actions=[-1, 1], req_time=NOW)
        message.named_feature.add(name="a").feature.fid_v1_list.value.extend([A, B])
        message.named_feature.add(name="b").feature.fid_v2_list.value.append(C)
    assert keeps(FilterByFids(**settings), message, record) == kept


@pytest.mark.parametrize(("slots", "kept"), [([2, 3, 1024, 4096], True), ([2, 10], False)])
@pytest.mark.parametrize("record", ["instance", "example"])
def test_vector_8_select_slots_looks_at_both_versions(slots: list[int], kept: bool, record: str) -> None:
    v1 = [fid.make_v1(2, 5), fid.make_v1(3, 6)]
    v2 = [fid.make_v2(1024, 7), fid.make_v2(4096, 8)]
    if record == "instance":
        message = instance(v1)
        message.feature.add(name="f").fid.extend(v2)
    else:
        message = example()
        message.named_feature.add(name="a").feature.fid_v1_list.value.extend(v1)
        message.named_feature.add(name="b").feature.fid_v2_list.value.extend(v2)
    assert keeps(FilterByFids(select_slots=slots), message, record) == kept


def test_vector_33_select_slots_of_rows() -> None:
    rows = [instance([fid.make_v1(2, i)] + ([fid.make_v1(3, i)] if i else []), uid=i) for i in range(5)]
    kept = run(FilterByFids(select_slots=[2, 3]), rows, "instance")
    assert [row.line_id.uid for row in kept] == [1, 2, 3, 4]


# --- 9 to 11: comparisons ---


@pytest.mark.parametrize(
    ("op", "operand", "holds"),
    [
        ("gt", 0, True),
        ("gt", 1, False),
        ("ge", 1, True),
        ("eq", 1, True),
        ("lt", 1, False),
        ("le", 1, True),
        ("neq", 1, False),
        ("between", [1, 2], True),
        ("between", [0, 1], False),
        ("in", [3, 1], True),
        ("not-in", [3, 1], False),
    ],
)
def test_vector_9_relations_of_integers(op: str, operand: Any, holds: bool) -> None:
    assert keeps(FilterByValue(field_name="chnid", op=op, operand=operand), example(chnid=1)) == holds


@pytest.mark.parametrize(
    ("op", "operand", "holds"),
    [
        ("gt", "a", True),
        ("ge", "b", True),
        ("lt", "b", False),
        ("le", "b", True),
        ("eq", "b", True),
        ("neq", "b", False),
    ],
)
def test_vector_9_relations_of_texts(op: str, operand: str, holds: bool) -> None:
    assert keeps(FilterByValue(field_name="did", op=op, operand=operand), example(did="b")) == holds


@pytest.mark.parametrize(
    ("op", "operand", "holds"),
    [
        ("eq", 2, True),
        ("neq", 2, False),
        ("le", 3, True),
        ("ge", 1, True),
        ("between", [1, 3], True),
        ("in", [1, 2], True),
        ("not-in", [1, 2], False),
    ],
)
def test_vector_10_uid(op: str, operand: Any, holds: bool) -> None:
    assert keeps(FilterByValue(field_name="uid", op=op, operand=operand), example(uid=2)) == holds


@pytest.mark.parametrize(
    ("op", "operand", "holds"),
    [
        ("any", [1, 2], True),
        ("any", [1, 4], False),
        ("all", [2, 3], True),
        ("all", [2, 3, 4], False),
        ("diff", [1, 4], True),
        ("diff", [1, 2, 4], False),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("field", ["actions", "special_strategies", "chnids"])
def test_vector_10_sets_in_any_order_packed_or_not(
    op: str, operand: list[int], holds: bool, order: int, field: str
) -> None:
    message = example(**{field: [2, 3][::order]})
    assert keeps(FilterByValue(field_name=field, op=op, operand=operand[::-order]), message) == holds


@pytest.mark.parametrize(
    ("op", "operand", "other"),
    [
        ("eq", "hello", "hello1"),
        ("le", "hello1", "hello2"),
        ("ge", "hell", "hel"),
        ("between", ["hell", "hello1"], "hello1"),
        ("startswith", "hell", "shell"),
        ("endswith", "llo", "hell"),
    ],
)
def test_vector_11_texts(op: str, operand: Any, other: str) -> None:
    assert keeps(FilterByValue(field_name="did", op=op, operand=operand), example(did="hello"))
    assert not keeps(FilterByValue(field_name="did", op=op, operand=operand), example(did=other))


# --- 15, 22, 32: ragged ---


def test_vector_15_concatenated_features() -> None:
    joined = concat([Ragged.from_lists([row]) for row in ([1 << 54], [2 << 54], list(range(10)))])
    assert joined.offsets.tolist() == [0, 1, 2, 12]


def test_vector_22_map_id_and_fid_mask() -> None:
    assert map_id([123, 456, 789, 912], {123: 0, 456: 1, 789: 2}).tolist() == [0, 1, 2, -1]
    assert gen_fid_mask(Ragged.from_lists([[1, 2, 3], [3], [], [4, 5, 6]]), 3).tolist() == [1, 1, 0, 0]


def test_vector_32_rows_of_values() -> None:
    assert row_ids([0, 4, 4, 7, 8, 8]).tolist() == [0, 0, 0, 0, 2, 2, 2, 3]


# --- 16 to 19: labels ---


def labels(rows: Sequence[Any]) -> list[list[np.float32]]:
    return [[np.float32(value) for value in row.label] for row in rows]


def test_vector_16_scatter_label() -> None:
    rows = [example([1], chnid=0), example([2], chnid=100), example([3], chnid=200), example([], chnid=300)]
    step = Compose([ScatterLabel(config="100:3,200:1,300:4"), FilterByLabel(thresholds=[-100] * 5)])
    assert labels(run(step, rows)) == [[INVALID, INVALID, INVALID, 2, INVALID], [INVALID, 3, INVALID, INVALID, INVALID]]


def test_vector_17_multi_label_gen() -> None:
    step = MultiLabelGen(
        head_to_index="ios:3,wp:1,android:4,other:0",
        head_field="device_type",
        pos_actions=[3, 2],
        neg_actions=[1],
        action_priority="4,3,2,1,0",
    )
    rows = [
        example(actions=[1, 2], device_type="ios"),
        example(actions=[3], device_type="wp"),
        example(actions=[2], device_type="android"),
        example(actions=[1], device_type="ios"),
    ]
    expected = []
    for place, value in [(3, 1), (1, 1), (4, 1), (3, 0)]:
        row = [INVALID] * 5
        row[place] = np.float32(value)
        expected.append(row)
    assert labels(run(step, rows)) == expected


def test_vector_18_bound_and_normalization() -> None:
    assert labels(run(LabelUpperBound(bounds=[0.5, 0.5]), [example([0, 1])])) == [[0, 0.5]]
    step = LabelNormalization(methods=["scale", "repow"], values=[0.5, 3])
    assert labels(run(step, [example([0, 1])])) == [[0, 8]]


def test_vector_19_use_field_as_label() -> None:
    row = example([0, 1], sample_rate=1.0)
    assert labels(run(UseFieldAsLabel(field_name="sample_rate"), [row])) == [[1, 1]]
    bound = LabelUpperBound(bounds=[0.5, 0.5])
    for threshold, expected in [(1.1, [1, 1]), (0.9, [0, 0.5])]:
        use = UseFieldAsLabel(field_name="sample_rate", overwrite_invalid_value=True, label_threshold=threshold)
        assert labels(run(Compose([bound, use]), [row])) == [expected]


# --- 20: operand files ---


def test_vector_20_operands_in_lists_and_files(tmp_path: Path) -> None:
    chnids = {"hello": 10, "world": 20, "excluded": 30, "300": 40, "400": 666}
    rows = [example(did=did, chnid=chnid, chnids=[chnid, 20]) for did, chnid in chnids.items()]
    rows[2].line_id.chnids.append(666)

    def kept(**settings: Any) -> list[str]:
        return [row.line_id.did for row in run(FilterByValue(**settings), rows)]

    texts, ints = tmp_path / "texts.pb", tmp_path / "ints.pb"
    texts.write_bytes(FilterValues(bytes_list={"value": [b"hello", b"world", b"excluded"]}).SerializeToString())
    ints.write_bytes(FilterValues(int64_list={"value": [20, 30, 666]}).SerializeToString())

    assert kept(field_name="did", op="not-in", operand=["hello", "world"]) == ["excluded", "300", "400"]
    assert kept(field_name="did", op="not-in", operand_filepath=str(texts)) == ["300", "400"]
    assert kept(field_name="chnid", op="in", operand_filepath=str(ints)) == ["world", "excluded", "400"]
    assert kept(field_name="chnids", op="all", operand=[20, 30, 666]) == ["excluded"]


def test_vector_20_endswith_any() -> None:
    rows = [example(did=did) for did in ("abckjhfjh", "kjhfjh", "huggfyfi1", "other")]
    kept = run(FilterByValue(field_name="did", op="endswith", operand=["kjhfjh", "huggfyfi"]), rows)
    assert [row.line_id.did for row in kept] == ["abckjhfjh", "kjhfjh"]


def test_vector_20_on_a_feature() -> None:
    row = example()
    row.named_feature.add(name="did").feature.bytes_list.value.append(b"300")
    row.named_feature.add(name="chnids").feature.int64_list.value.extend([666, 30, 20])
    for settings in (
        {"field_name": "did", "op": "not-in", "operand": ["hello", "world"]},
        {"field_name": "did", "op": "endswith", "operand": "00"},
        {"field_name": "chnids", "op": "all", "operand": [20, 30, 666]},
    ):
        assert keeps(FilterByFeatureValue(**settings), row)


# --- 21, 22, 35: sampling and labels by lot ---


def test_vector_21_negative_sample() -> None:
    step = NegativeSample(
        drop_rate=0.88,
        threshold=0.5,
        action_priority="2,3,4,1,5,6",
        per_action_drop_rate="1:1,2:0,3:1,4:.5,5:.22",
    )
    count = 5000

    def share_dropped(actions: list[int], label: float = 0.0) -> float:
        return 1 - len(run(step, [example([label], actions=actions)] * count)) / count

    assert share_dropped([1, 2, 3]) == 0
    assert share_dropped([1, 3, 5]) == 1
    assert share_dropped([5, 6]) == pytest.approx(0.22, abs=0.03)
    assert share_dropped([6]) == pytest.approx(0.88, abs=0.03)
    assert share_dropped([77]) == pytest.approx(0.88, abs=0.03)
    assert share_dropped([4]) == pytest.approx(0.5, abs=0.03)
    assert share_dropped([1], label=1.0) == 0


@pytest.mark.parametrize("seed", range(5))
def test_vector_22_add_label_count(seed: int) -> None:
    rows = [example(actions=actions) for actions in ([1, 2, 4], [1], [3, 4], [5]) for _ in range(100)]
    step = Compose([AddLabel(config="1,2:3:1.0;4::0.5"), FilterByLabel(thresholds=[-100, -100])])
    # Rows of the first three kinds always have a label; of the fourth, half do.
    kept = run(step, rows, seed=seed)
    assert 340 <= len(kept) <= 360
    assert [row.line_id.actions[0] for row in kept[:300]] == [1] * 200 + [3] * 100


def test_vector_22_pipeline_of_forty_rows() -> None:
    plain = 290956192322012601
    rows = []
    for i in range(40):
        fids = [fid.make_v1(2, i), fid.make_v1(3, i)] if i < 10 else [plain]
        row = instance(fids, uid=i, read_count=0 if i >= 20 else 1, video_play_time=0 if 20 <= i < 30 else 1)
        if 30 <= i < 35:
            row.line_id.actions.append(2)
        rows.append(row)
    steps = Compose(
        [
            FilterByFids(select_fids=[plain]),
            FilterByValue(field_name="read_count", op="in", operand=[0]),
            LogicalOr(FilterByValue(field_name="video_play_time", op="eq", operand=0), FilterByAction(has_actions=[2])),
        ]
    )
    text = """
      configs { basic_config { filter_by_fid { select_fids: 290956192322012601 } } }
      configs { basic_config { filter_by_value { field_name: "read_count" op: "in" int_operand: 0 } } }
      configs { logical_or_config {
        x { filter_by_value { field_name: "video_play_time" op: "eq" int_operand: 0 } }
        y { filter_by_action { has_actions: 2 } } } }
    """
    assert parse_transform_config(text) == steps
    kept = run(steps, rows, "instance")
    assert [row.line_id.uid for row in kept] == list(range(20, 35))


def test_vector_34_filter_by_label() -> None:
    row = example([0, 1])
    assert keeps(FilterByLabel(thresholds=[0, 1]), row)
    assert not keeps(FilterByLabel(thresholds=[0, 1], filter_equal=True), row)


def test_vector_35_instance_reweight() -> None:
    step = InstanceReweight(action_priority="2,7,0,1,3,4,5,6", reweight="2:3:-1,7:6:1,others:0:")
    for action, copies, label in [(2, 3, -1), (7, 6, 1), (0, 0, None)]:
        rows = run(step, [instance(label=[0], actions=[action])], "instance")
        assert [list(row.label) for row in rows] == [[label]] * copies
