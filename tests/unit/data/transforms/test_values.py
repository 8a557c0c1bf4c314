from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.core.errors import ConfigError, RecordCorrupt
from monolith.data.records.line_id import LineIdFields
from monolith.data.records.messages import Example, FilterValues, with_line_id
from monolith.data.transforms import AddAction, FilterByFeatureValue, FilterByValue

FIELDS = LineIdFields.standard().extended(
    {
        "big": (11, "uint64"),
        "score": (20, "double"),
        "tags": (163, "repeated string"),
        "counts": (164, "repeated fixed64"),
        "quota": (165, "fixed32"),
    }
)
MESSAGES = with_line_id(FIELDS)


def test_unsigned_fields_are_compared_without_a_sign(bench: Any, make_example: Any) -> None:
    row = make_example(uid=(1 << 63) + 5)
    for op, operand in [("gt", 5), ("ge", (1 << 63) + 5), ("eq", (1 << 63) + 5), ("in", [(1 << 63) + 5, 1])]:
        assert bench.run(FilterByValue(field_name="uid", op=op, operand=operand), [row]), op
    assert not bench.run(FilterByValue(field_name="uid", op="lt", operand=6), [row])
    assert bench.run(FilterByValue(field_name="uid", op="eq", operand=5 - (1 << 63)), [row])  # the same bits
    with pytest.raises(ConfigError, match="unsigned, so 'lt' cannot take the operand -1"):
        bench.run(FilterByValue(field_name="uid", op="lt", operand=-1), [row])


def test_signed_fields_are_compared_with_their_sign(bench: Any, make_example: Any) -> None:
    row = make_example(chnid=-(1 << 62) - 1)
    assert bench.run(FilterByValue(field_name="chnid", op="lt", operand=-(1 << 62)), [row])
    assert not bench.run(FilterByValue(field_name="chnid", op="ge", operand=-(1 << 62)), [row])


def test_floats_are_compared_in_their_own_precision(bench: Any, make_example: Any) -> None:
    row = make_example(sample_rate=0.1)
    assert bench.run(FilterByValue(field_name="sample_rate", op="eq", operand=0.1), [row])
    assert bench.run(FilterByValue(field_name="sample_rate", op="in", operand=[0.3, 0.1, 0.2]), [row])
    assert bench.run(FilterByValue(field_name="sample_rate", op="between", operand=[0.1, 0.2]), [row])


def test_an_absent_field_is_kept_when_asked_for_and_a_default_counts(bench: Any) -> None:
    for field, op, operand in [("chnid", "eq", 0), ("device_type", "eq", "x"), ("actions", "any", 1)]:
        for keep_empty in (True, False):
            step = FilterByValue(field_name=field, op=op, operand=operand, keep_empty=keep_empty)
            assert bool(bench.run(step, [Example()])) == keep_empty
    assert bench.run(FilterByValue(field_name="sample_rate", op="eq", operand=1.0), [Example()])


def test_fields_that_the_user_added(make_bench: Any) -> None:
    row = MESSAGES.Example()
    row.line_id.big = (1 << 64) - 1
    row.line_id.score = 0.1
    row.line_id.tags.extend(["b", "a"])
    row.line_id.counts.extend([9, (1 << 64) - 1])
    row.line_id.quota = (1 << 32) - 1
    for field, op, operand in [
        ("big", "eq", -1),  # a varint field is signed, so these are the bits
        ("score", "eq", 0.1),
        ("tags", "all", ["a", "b"]),
        ("tags", "diff", "c"),
        ("counts", "any", (1 << 64) - 1),
        ("quota", "gt", 1 << 31),
    ]:
        step = FilterByValue(field_name=field, op=op, operand=operand)
        assert make_bench(fields=FIELDS).run(step, [row]), field


@given(values=st.lists(st.integers(-5, 5), min_size=1), operands=st.lists(st.integers(-5, 5), min_size=1))
def test_set_ops_are_those_of_sets(values: list[int], operands: list[int]) -> None:
    from monolith import _native
    from monolith.data.transforms import BuildContext

    row = Example()
    row.line_id.actions.extend(values)
    expected = {
        "any": bool(set(values) & set(operands)),
        "all": set(operands) <= set(values),
        "diff": not set(values) & set(operands),
    }
    for op, kept in expected.items():
        columns = _native.Columns()
        rows = _native.RowParser("example", columns).parse(_native.Records([row.SerializeToString()]))
        FilterByValue(field_name="actions", op=op, operand=operands).build(BuildContext(columns=columns)).run(rows)
        assert len(rows) == kept


@pytest.mark.parametrize(
    ("field", "op", "operand", "message"),
    [
        ("uid", "any", 1, "op 'any' does not fit LineId field 'uid', which holds integers; use one of: gt, ge, eq, lt"),
        ("actions", "in", [1], "which holds a list of integers; use one of: any, all, diff"),
        ("uid", "startswith", 1, "does not fit LineId field 'uid'"),
        ("device_type", "any", "a", "which holds text; use one of: .*startswith, endswith"),
        ("uid", "eq", [1, 2], "op 'eq' of LineId field 'uid' takes one operand, got 2"),
        ("uid", "between", [1], "takes two operands, got 1"),
        ("uid", "between", [3, 1], "between 3 and 1 is nothing"),
        ("uid", "eq", "a", "the operand 'a' does not fit; the value is compared with whole numbers"),
        ("uid", "eq", 1.5, "the operand 1.5 does not fit"),
        ("device_type", "eq", 1, "compared with texts"),
        ("sample_rate", "eq", float("nan"), "is NaN"),
        ("no_such", "eq", 1, "LineId has no field 'no_such'; known fields: uid, req_time"),
    ],
)
def test_a_value_of_another_type_is_refused(bench: Any, field: str, op: str, operand: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FilterByValue(field_name=field, op=op, operand=operand).build(bench.context)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"op": "like", "operand": 1}, "FilterByValue.op is 'like'; use one of: gt, ge"),
        ({"op": "eq"}, "has no operand"),
        ({"op": "in", "operand": [1], "operand_filepath": "f"}, "both operand and operand_filepath"),
        ({"op": "in", "operand": [None]}, "operand has None"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FilterByValue(field_name="uid", **settings)


def test_operand_files_must_hold_the_kind_of_the_field(bench: Any, tmp_path: Path) -> None:
    path = tmp_path / "values.pb"
    step = FilterByValue(field_name="uid", op="in", operand_filepath=str(path))
    with pytest.raises(ConfigError, match=r"operand_filepath .* cannot be read"):
        step.build(bench.context)
    path.write_bytes(FilterValues(bytes_list={"value": [b"a"]}).SerializeToString())
    with pytest.raises(ConfigError, match="the operand b'a' does not fit"):
        step.build(bench.context)
    path.write_bytes(b"")
    with pytest.raises(ConfigError, match="holds no operands"):
        step.build(bench.context)
    path.write_bytes(b"\x12\x05\x0a\x03\x01")
    with pytest.raises(RecordCorrupt, match=r"values.pb: byte \d+: not a FilterValues message"):
        step.build(bench.context)
    path.write_bytes(FilterValues(float_list={"value": [0.5]}).SerializeToString())
    FilterByValue(field_name="sample_rate", op="in", operand_filepath=str(path)).build(bench.context)


def feature_row(**arms: Any) -> Any:
    row = Example()
    for arm, values in arms.items():
        getattr(row.named_feature.add(name=arm).feature, arm).value.extend(values)
    return row


def test_features_of_every_type(bench: Any) -> None:
    row = feature_row(
        int64_list=[-7], float_list=[0.1], double_list=[0.1], bytes_list=[b"abc"], fid_v2_list=[5], fid_v1_list=[6]
    )
    for name, kind, op, operand in [
        ("int64_list", "int64", "lt", 0),
        ("float_list", "float", "eq", 0.1),
        ("double_list", "double", "in", [0.1]),
        ("bytes_list", "bytes", "startswith", ["x", "ab"]),
        ("fid_v2_list", "fid", "eq", 5),
        ("fid_v1_list", "fid", "any", [6]),
    ]:
        step = FilterByFeatureValue(field_name=name, field_type=kind, op=op, operand=operand)
        assert bench.run(step, [row]), name


@pytest.mark.parametrize("keep_empty", [True, False])
def test_features_that_cannot_be_compared_count_as_empty(bench: Any, keep_empty: bool) -> None:
    for row in (Example(), feature_row(int64_list=[1, 2]), feature_row(int64_list=[])):
        step = FilterByFeatureValue(field_name="int64_list", op="eq", operand=1, keep_empty=keep_empty)
        assert bool(bench.run(step, [row])) == keep_empty
    step = FilterByFeatureValue(field_name="float_list", op="eq", operand=1, keep_empty=keep_empty)
    assert bool(bench.run(step, [feature_row(float_list=[1.0])])) == keep_empty


def test_add_action_appends_where_the_test_holds(bench: Any, make_example: Any) -> None:
    rows = [make_example(chnid=chnid, actions=[1, 300]) for chnid in (1, 5)] + [make_example(chnid=5)]
    result = bench.run(AddAction(field_name="chnid", op="gt", operand=3, action=-2), rows)
    assert [list(row.line_id.actions) for row in result] == [[1, 300], [1, 300, -2], [-2]]
