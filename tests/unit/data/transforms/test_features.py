from __future__ import annotations

import math
from typing import Any

import pytest

from monolith.core import fid
from monolith.core.errors import ConfigError, SchemaMismatch
from monolith.data.records.messages import Example, Instance
from monolith.data.transforms import BuildContext, FeatureCombine, StringToFid, SwitchSlot


def feature(row: Any, name: str) -> Any:
    return next((each.feature for each in row.named_feature if each.name == name), None)


def test_switch_slot_makes_a_copy_or_works_in_place(bench: Any, make_example: Any) -> None:
    row = make_example(features={"a": [fid.make_v2(305, (1 << 48) - 1)], "b": [fid.make_v2(1, 2)]})
    (result,) = bench.run(SwitchSlot(slots={"a": 306, "b": (True, 9)}), [row])
    assert list(feature(result, "a").fid_v2_list.value) == [fid.make_v2(305, (1 << 48) - 1)]
    assert list(feature(result, "a_share").fid_v2_list.value) == [fid.make_v2(306, (1 << 48) - 1)]
    assert list(feature(result, "b").fid_v2_list.value) == [fid.make_v2(9, 2)]


@pytest.mark.parametrize(("slot", "version"), [(700, 1), (5000, 2)])
def test_switch_slot_keeps_v1_where_the_slot_allows(bench: Any, slot: int, version: int) -> None:
    ids = [fid.make_v1(3, (1 << 54) - 1), fid.make_v1(4, 7)]
    row = Example()
    row.named_feature.add(name="a").feature.fid_v1_list.value.extend(ids)
    nested = row.named_feature.add(name="n").feature.fid_v1_lists
    nested.list.add().value.append(ids[0])
    nested.list.add()
    nested.list.add().value.extend(ids)
    (result,) = bench.run(SwitchSlot(slots={"a": (True, slot), "n": (False, slot)}, suffix="x"), [row])
    expected = [fid.as_unsigned(fid.switch_slot(each, slot, version)) for each in ids]
    assert list(getattr(feature(result, "a"), f"fid_v{version}_list").value) == expected
    lists = getattr(feature(result, "n_x"), f"fid_v{version}_lists").list
    assert [list(each.value) for each in lists] == [[expected[0]], [], expected]
    assert feature(result, "n").fid_v1_lists.list[0].value == [ids[0]]  # the source is not touched


def test_features_of_an_instance_come_out_of_its_flat_ids(make_bench: Any) -> None:
    bench = make_bench("instance")
    row = Instance(fid=[fid.make_v1(3, 1), fid.make_v1(4, 2), fid.make_v1(3, 5)])
    (result,) = bench.run(SwitchSlot(slots={"fc_slot_3": 8}), [row])
    assert list(feature(result, "fc_slot_3_share").fid_v1_list.value) == [fid.make_v1(8, 1), fid.make_v1(8, 5)]
    context = BuildContext(columns=bench.columns, slots={"item": 4})
    rows = bench.rows([row])
    FeatureCombine(name_a="slot_3", name_b="item", slot=9, out="cross").build(context).run(rows)
    (result,) = bench.examples(rows)
    expected = [fid.cross(a, row.fid[1], 9, 1) for a in (row.fid[0], row.fid[2])]
    assert list(feature(result, "cross").fid_v1_list.value) == expected


def test_crosses_are_those_of_the_original(bench: Any) -> None:
    row = Example()
    row.named_feature.add(name="a").feature.fid_v1_list.value.append(34661039000183975)
    row.named_feature.add(name="b").feature.fid_v1_list.value.append(5496023425700513216)
    (result,) = bench.run(FeatureCombine(name_a="a", name_b="b", slot=504, out="x"), [row])
    assert list(feature(result, "x").fid_v1_list.value) == [9092789705426625231]


def test_crosses_go_through_the_first_feature_outside(bench: Any, make_example: Any) -> None:
    a, b = [fid.make_v2(1, i) for i in (5, 6)], [fid.make_v2(2, i) for i in (7, 8, 9)]
    (result,) = bench.run(
        FeatureCombine(name_a="a", name_b="b", slot=2000, out="x"), [make_example(features={"a": a, "b": b})]
    )
    assert list(feature(result, "x").fid_v2_list.value) == [fid.cross(i, j, 2000) for i in a for j in b]


def test_crosses_of_two_versions_are_v2(bench: Any) -> None:
    row = Example()
    row.named_feature.add(name="a").feature.fid_v1_list.value.append(fid.make_v1(1, 5))
    row.named_feature.add(name="b").feature.fid_v2_list.value.append(fid.make_v2(2, 6))
    row.named_feature.add(name="c").feature.fid_v1_list.value.append(fid.make_v1(3, 7))
    (result,) = bench.run(FeatureCombine(name_a="a", name_b="b", slot=3, out="x"), [row])
    assert list(feature(result, "x").fid_v2_list.value) == [fid.cross(fid.make_v2(1, 5), fid.make_v2(2, 6), 3)]
    (result,) = bench.run(FeatureCombine(name_a="a", name_b="c", slot=3000, out="x"), [row])
    assert list(feature(result, "x").fid_v2_list.value) == [fid.cross(fid.make_v1(1, 5), fid.make_v1(3, 7), 3000)]


def test_a_cross_with_a_missing_feature_is_empty(bench: Any, make_example: Any) -> None:
    step = FeatureCombine(name_a="a", name_b="b", slot=3, out="x")
    (result,) = bench.run(step, [make_example(features={"a": [1]})])
    assert feature(result, "x") is None


def values_row() -> Any:
    row = Example()
    row.named_feature.add(name="text").feature.bytes_list.value.extend([b"ios", b""])
    row.named_feature.add(name="int").feature.int64_list.value.extend([185, -3, 12074])
    row.named_feature.add(name="small").feature.int64_list.value.extend([185, 2**48 - 1])
    row.named_feature.add(name="float").feature.float_list.value.extend([29.0, math.nan, -1.0])
    row.named_feature.add(name="double").feature.double_list.value.extend([178.0])
    return row


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("text", {}, [fid.from_value(4, b"ios"), fid.from_value(4, b"")]),
        ("int", {}, [fid.from_value(4, value) for value in (185, -3, 12074)]),
        ("small", {"method": "int"}, [fid.make_v2(4, value) for value in (185, 2**48 - 1)]),
        ("int", {"method": "int64_hash"}, [1153447759131936, fid.from_int64(4, -3), fid.from_int64(4, 12074)]),
        ("int", {"method": "log2"}, [fid.make_v2(4, value) for value in (7, 2, 13)]),
        ("float", {"method": "log2"}, [fid.make_v2(4, 4), fid.make_v2(4, 1)]),
        ("float", {"method": "ln", "scale": 1000}, [fid.from_value(4, "3401"), fid.from_value(4, "0")]),
        ("double", {"method": "ln"}, [fid.from_value(4, "5")]),
        ("double", {"method": "ratio"}, [fid.from_value(4, "17800")]),
    ],
)
def test_values_become_ids(bench: Any, name: str, settings: dict[str, Any], expected: list[int]) -> None:
    (result,) = bench.run(StringToFid(name=name, slot=4, out="ids", **settings), [values_row()])
    assert list(feature(result, "ids").fid_v2_list.value) == expected
    assert feature(result, name) is not None
    (result,) = bench.run(StringToFid(name=name, slot=4, **settings), [values_row()])
    assert list(feature(result, name).fid_v2_list.value) == expected


@pytest.mark.parametrize("value", [-3, 2**48])
def test_an_integer_that_does_not_fit_beside_the_slot_is_an_error(bench: Any, value: int) -> None:
    row = Example()
    row.named_feature.add(name="int").feature.int64_list.value.append(value)
    with pytest.raises(SchemaMismatch, match=f"{value}.*2\\^48 - 1 beside slot 4.*int64_hash"):
        bench.run(StringToFid(name="int", slot=4, method="int"), [row])


@pytest.mark.parametrize(
    ("name", "method"), [("text", "int"), ("float", "hash"), ("double", "int64_hash"), ("text", "log2")]
)
def test_a_method_that_cannot_take_the_values_is_an_error(bench: Any, name: str, method: Any) -> None:
    with pytest.raises(SchemaMismatch, match=f"feature '{name}' holds .* bytes take hash, integers any method"):
        bench.run(StringToFid(name=name, slot=4, method=method), [values_row()])


def test_slots_and_crosses_want_ids(bench: Any) -> None:
    with pytest.raises(SchemaMismatch, match=r"feature 'text' holds bytes, not fids; .*StringToFid"):
        bench.run(SwitchSlot(slots={"text": 3}), [values_row()])
    with pytest.raises(SchemaMismatch, match="feature 'int' holds integers"):
        bench.run(FeatureCombine(name_a="int", name_b="int", slot=1, out="x"), [values_row()])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SwitchSlot(slots={}), "give a mapping"),
        (lambda: SwitchSlot(slots={"a": 40000}), "slots are 0 to 32767"),
        (lambda: FeatureCombine(name_a="a", name_b="", slot=1, out="x"), "FeatureCombine.name_b is ''"),
        (lambda: FeatureCombine(name_a="a", name_b="b", slot=-1, out="x"), "FeatureCombine.slot is -1"),
        (lambda: StringToFid(name="a", slot=1, method="md5"), "use one of: hash, int"),
        (lambda: StringToFid(name="a", slot=1, scale=2.0), "the method 'hash' has no scale"),
    ],
)
def test_bad_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
