from __future__ import annotations

import contextlib
import json
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith.core.errors import ConfigError, RecordCorrupt
from monolith.data.records import messages
from monolith.data.records.formatter import Style, detect_style, format_record, parse_record
from monolith.data.records.line_id import LineIdFields

STYLES: tuple[Style, ...] = get_args(Style)
KINDS = [messages.Instance, messages.Example, messages.ExampleBatch, messages.ExampleBatchRowMajor, messages.TfExample]
EXTENDED = messages.with_line_id(
    LineIdFields.standard().extended({"did": (11, "string"), "play": (20, "int64"), "vids": (163, "repeated int64")})
)


def scalars(field: Any) -> st.SearchStrategy[Any]:
    """Any value that one element of ``field`` can have."""
    names = {number: name for name, number in vars(type(field)).items() if name.startswith("TYPE_")}
    kind = names[field.type].removeprefix("TYPE_").lower()
    bits = {"int32": 31, "int64": 63, "uint32": 32, "uint64": 64, "fixed64": 64}
    if kind in bits:
        return st.integers(0 if kind[0] in "uf" else -(1 << bits[kind]), (1 << bits[kind]) - 1)
    return {
        "float": st.floats(width=32, allow_nan=False),
        "double": st.floats(allow_nan=False),
        "bool": st.booleans(),
        "bytes": st.binary(max_size=8),
        "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        "enum": st.integers(0, 3),
    }[kind]


@st.composite
def messages_of(draw: st.DrawFn, kind: type[Any]) -> Any:
    """Any message of class ``kind``, now and then with fields that it does not know."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if not draw(st.booleans()):
            continue
        target = getattr(message, field.name)
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            for key in draw(st.lists(scalars(entry.fields_by_name["key"]), max_size=2, unique=True)):
                value = entry.fields_by_name["value"]
                target[key].CopyFrom(draw(messages_of(type(target[key])))) if value.message_type else None
        elif entry is not None and field.is_repeated:
            for _ in range(draw(st.integers(0, 2))):
                one = target.add()
                one.CopyFrom(draw(messages_of(type(one))))
        elif entry is not None:
            target.SetInParent()
            target.CopyFrom(draw(messages_of(type(target))))
        elif field.is_repeated:
            target.extend(draw(st.lists(scalars(field), max_size=3)))
        else:
            setattr(message, field.name, draw(scalars(field)))
    if draw(st.integers(0, 4)) == 0:
        message.MergeFromString(b"\xf2\xff\x01\x03abc" + b"\xf8\xff\x01\x07")  # numbers 4094 and 4095
    return message


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=60)
@given(st.data())
def test_any_record_comes_back_from_every_style(style: Style, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    message = data.draw(messages_of(kind))
    text = format_record(message, style)
    assert parse_record(text, kind, style) == message
    if text.strip():
        assert parse_record(text, kind) == message


@pytest.mark.parametrize("style", STYLES)
def test_unknown_fields_of_a_line_id_survive_every_style(style: Style) -> None:
    full = EXTENDED.ExampleBatchRowMajor()
    full.example.add()
    full.example.add().line_id.CopyFrom(EXTENDED.LineId(uid=1, did="d", play=2, vids=[3]))
    plain = messages.ExampleBatchRowMajor.FromString(full.SerializeToString())
    back = parse_record(format_record(plain, style), "example_batch_row_major")
    assert EXTENDED.ExampleBatchRowMajor.FromString(back.SerializeToString()) == full


def test_a_family_may_be_given() -> None:
    text = '{"line_id": {"did": "d", "vids": [1, "2"]}}'
    assert list(parse_record(text, "example", messages=EXTENDED).line_id.vids) == [1, 2]
    with pytest.raises(RecordCorrupt, match=r"line_id\.did: LineId has no such field; known: uid"):
        parse_record(text, "example")


def test_json_takes_numbers_text_and_camel_case() -> None:
    text = '{"fid": [1, "2", -1, 3.0], "lineId": {"reqTime": "5", "sampleRate": 1}, "label": [1, "NaN", "-Infinity"]}'
    instance = parse_record(text, "instance")
    assert list(instance.fid) == [1, 2, (1 << 64) - 1, 3]
    assert (instance.line_id.req_time, instance.line_id.sample_rate) == (5, 1.0)
    assert instance.label[0] == 1
    assert instance.label[1] != instance.label[1]
    assert instance.label[2] == float("-inf")


def test_json_writes_64_bit_numbers_as_text_and_short_floats() -> None:
    instance = messages.Instance(fid=[(1 << 64) - 1], label=[0.1], data_source_key=3)
    assert json.loads(format_record(instance)) == {
        "fid": ["18446744073709551615"],
        "label": [0.1],
        "data_source_key": 3,
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"fid": 5}', r"fid: a list is expected, not 5"),
        ('{"fid": [1.5]}', r"fid\[0\]: a whole number"),
        ('{"fid": [true]}', r"fid\[0\]: a whole number"),
        ('{"fid": ["12x"]}', r"fid\[0\]: a whole number"),
        ('{"fid": [1, 18446744073709551616]}', r"fid\[1\]: 18446744073709551616 does not fit"),
        ('{"fid": [1e400]}', r"fid\[0\]: a whole number"),
        ('{"label": ["high"]}', r"label\[0\]: a number is expected"),
        ('{"feature": [{"name": 3}]}', r"feature\[0\]\.name: text is expected"),
        ('{"feature": [{"bytes_value": ["%"]}]}', r"feature\[0\]\.bytes_value\[0\]: base64"),
        ('{"line_id": {"is_draw": 1}}', r"line_id\.is_draw: true or false"),
        ('{"line_id": [1]}', r"line_id: a group of keys is expected \(LineId\), not \[1\]"),
        ('{"line_id": {"rank": 3000000000}}', r"line_id\.rank: 3000000000 does not fit"),
        ('{"@unknown": "!"}', "@unknown: base64"),
        ('{"@unknown": "Cg=="}', "@unknown: .*are no Instance"),
        ('{"nothing": 1}', "nothing: Instance has no such field; known: fid"),
        ('{"fid": [1], "fid": [2]}', "not JSON that can be read .the key 'fid' is given twice"),
        ('{"line_id": {}, "lineId": {}}', "lineId: 'line_id' is given twice"),
        ('{\n"fid": [1,]}', "line 2: not JSON"),
        ("[1]", "the record: a group of keys is expected"),
        ("[" * 100000, "not JSON"),
        (f'{{"fid": [{"9" * 5000}]}}', "not JSON that can be read"),
    ],
)
def test_json_that_does_not_fit_names_the_place(text: str, problem: str) -> None:
    with pytest.raises(RecordCorrupt, match=rf"^in\.json: {problem}"):
        parse_record(text, "instance", "json", source="in.json")


def test_json_refuses_two_arms_of_one_feature_and_wrong_enums() -> None:
    with pytest.raises(RecordCorrupt, match=r"feature\.int64_value: 'float_value' is given already"):
        parse_record('{"named_feature": [{"feature": {"float_value": 1, "int64_value": 2}}]}', "example")
    with pytest.raises(RecordCorrupt, match="type: one of INDIVIDUAL, SHARED is expected, not 'ALL'"):
        parse_record('{"named_feature_list": [{"type": "ALL"}]}', "example_batch")
    assert parse_record('{"named_feature_list": [{"type": "SHARED"}]}', "example_batch").named_feature_list[0].type == 1


def test_text_that_does_not_fit_names_the_line() -> None:
    with pytest.raises(RecordCorrupt, match="in: line 2: no text of Instance"):
        parse_record("fid: 1\nnothing: 3\n", "instance", source="in")
    with pytest.raises(RecordCorrupt, match=r"line 1: the record has no record\.line_id\.cid"):
        parse_record("# unknown fields of record.line_id.cid: AA==\n", "instance", "pbtxt")
    with pytest.raises(RecordCorrupt, match=r"required fields are missing: .*field_name"):
        parse_record("configs { basic_config { filter_by_value { op: 'eq' } } }", messages.TransformConfig)


def test_the_style_is_seen_from_the_text() -> None:
    assert detect_style(' \n{"fid": [1]}') == "json"
    assert detect_style("fid: 1") == "pbtxt"
    assert detect_style("# a comment\nline_id {\n}") == "pbtxt"
    assert detect_style('"root":\n"fid":') == "dump"
    assert detect_style("root:\n") == "dump"
    with pytest.raises(RecordCorrupt, match="the text is empty"):
        detect_style(" \n")


def test_people_see_slots_signatures_and_line_ids() -> None:
    batch = messages.ExampleBatch(batch_size=1)
    column = batch.named_feature_list.add(name="f_user_ctx_platform")
    column.feature.add().fid_v1_list.value.append(938505698453898612)
    column = batch.named_feature_list.add(name="fc_platforms")
    column.feature.add().fid_v2_lists.list.add().value.append(14704824889525620)
    column = batch.named_feature_list.add(name="__LINE_ID__")
    column.feature.add().bytes_list.value.append(messages.LineId(uid=7, actions=[1]).SerializeToString())
    column = batch.named_feature_list.add(name="other")
    column.feature.add().bytes_list.value.append(b"\x10")
    shown = json.loads(format_record(batch, readable=True))["named_feature_list"]
    values = [next(iter(column["feature"][0].values())) for column in shown]
    assert values[0] == {"value": ["938505698453898612(v1|slot=52|sig=1756975960835444)"]}
    assert values[1] == {"list": [{"value": ["14704824889525620(v2|slot=52|sig=68126100571508)"]}]}
    assert values[2] == {"value": [{"uid": "7", "actions": [1]}]}
    assert values[3] == {"value": ["EA=="]}
    assert "slot=52" in format_record(batch, "dump", readable=True)


def test_people_see_the_versions_of_an_instance() -> None:
    instance = messages.Instance(fid=[(2 << 54) | 5])
    instance.feature.add(name="a", fid=[(3 << 48) | 6])
    instance.line_id.uid = 9
    shown = json.loads(format_record(instance, readable=True))
    assert shown["fid"] == [f"{(2 << 54) | 5}(v1|slot=2|sig=5)"]
    assert shown["feature"][0]["fid"] == [f"{(3 << 48) | 6}(v2|slot=3|sig=6)"]
    assert shown["line_id"] == {"uid": "9"}


def test_a_line_id_that_cannot_be_opened_is_shown_as_it_is() -> None:
    example = messages.Example()
    example.named_feature.add(name="__LINE_ID__").feature.bytes_list.value.append(b"\xff")
    assert "/w==" in format_record(example, readable=True)


def test_styles_that_are_not_known_are_refused() -> None:
    with pytest.raises(ConfigError, match="'yaml'"):
        format_record(messages.Example(), "yaml")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'yaml'"):
        parse_record("a", "example", "yaml")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="readable"):
        format_record(messages.Example(), "pbtxt", readable=True)


@settings(max_examples=150)
@given(st.text(alphabet=st.sampled_from('{}[]":,01 \nfidrootlabeline_#@.-x'), max_size=60), st.sampled_from(STYLES))
def test_garbage_is_read_or_refused_but_never_worse(text: str, style: Style) -> None:
    with contextlib.suppress(RecordCorrupt):
        parse_record(text, "instance", style)
