from __future__ import annotations

import pytest

from monolith.core.errors import RecordCorrupt
from monolith.data.records import messages
from monolith.data.records.formatter import format_record, parse_record


def test_a_dump_is_one_key_per_line() -> None:
    instance = messages.Instance(label=[0, 1])
    instance.line_id.actions.append(1)
    instance.feature.add(name="fc_a", fid=[1])
    instance.feature.add()
    assert format_record(instance, "dump") == (
        '"root":\n  "label":\n    0: 0.0\n    1: 1.0\n  "line_id":\n    "actions":\n      0: 1\n'
        '  "feature":\n    0:\n      "name": "fc_a"\n      "fid":\n        0: "1"\n    1: {}\n'
    )


def test_without_indentation_the_schema_places_a_line() -> None:
    first = '"root":\n"feature":\n0:\n"fid":\n0: "1"\n1: 2\n1:\n"name": "b"\n'
    text = first + '"fid":\n0: 9\nlabel":\n0: 0\n"line_id":\n"uid": 3\n"fid":\n0: 4'
    instance = parse_record(text, "instance")
    assert [list(feature.fid) for feature in instance.feature] == [[1, 2], [9]]
    assert list(instance.fid) == [4]
    assert (instance.feature[1].name, list(instance.label), instance.line_id.uid) == ("b", [0.0], 3)


def test_indentation_places_a_line_if_there_is_any() -> None:
    text = 'feature:\n\t0:\n\t\tname: "b"\nfid:\n\t0: 9\n'
    instance = parse_record(text, "instance", "dump")
    assert list(instance.fid) == [9]
    assert not instance.feature[0].fid


def test_maps_and_odd_names_are_written_and_read() -> None:
    example = messages.TfExample()
    for name in ("a: b", 'quote"d', "\u2028", "7", "[x]"):
        example.features.feature[name].int64_list.value.append(1)
    example.features.feature["empty"].SetInParent()
    assert parse_record(format_record(example, "dump"), "tf_example") == example


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("garbage", "line 1: not of the form"),
        ('"root":\n\n"label":\n1: 5', "line 4: label: index 1 where 0 comes next"),
        ('"label":\n0: high', "line 2: 'high' is neither a number nor text"),
        ('"label":\n0: "high"', r"line 2: label\[0\]: a number is expected"),
        ('"label":\n0: [1]', "line 2: one value is expected"),
        ('"line_id":\n"nothing": 1', "line 2: line_id has no field 'nothing'; known: uid"),
        ('"label": 3', "line 1: label: a list is expected"),
        ('"label":\n  0: 1\n"label":\n  0: 2', "line 3: the record has 'label' already"),
        ('"feature":\n  0: 5', r"line 2: feature\[0\] is a group of keys"),
        ('"label":\n  0:\n    1: 2', r"line 2: label\[0\] is a single value"),
        ('"line_id":\n  "rank": 99999999999', "line 2: line_id.rank: 99999999999 does not fit"),
    ],
)
def test_an_invalid_line_is_named(text: str, problem: str) -> None:
    with pytest.raises(RecordCorrupt, match=f"^in.dump: {problem}"):
        parse_record(text, "instance", "dump", source="in.dump")
