from __future__ import annotations

import typing

import pytest

from monolith.core.errors import ConfigError, RecordCorrupt
from monolith.data.records import messages
from monolith.data.records.line_id import LineIdField, LineIdFields

EXTENDED = LineIdFields.standard().extended(
    {
        "did": (11, "string"),
        "video_play_time": (20, "int64"),
        "vids": (163, "repeated int64"),
        "stay": LineIdField(name="stay", number=900, type="double", default=2.5),
        "page": LineIdField(name="page", number=901, type="sfixed32", default=-3),
        "seen": LineIdField(name="seen", number=902, type="bool", default=True),
        "tags": (903, "repeated bytes"),
        "marks": LineIdField(name="marks", number=904, type="uint32", is_repeated=True),
    }
)


def extended_line_id() -> bytes:
    line_id = messages.with_line_id(EXTENDED).LineId(
        uid=7, did="d", video_play_time=9, vids=[1, 2], tags=[b"\xff"], marks=[3, 4]
    )
    return line_id.SerializeToString()


def test_every_message_of_the_table_is_visible_and_typed() -> None:
    named = [name for name in messages.__all__ if getattr(getattr(messages, name), "DESCRIPTOR", None)]
    assert sorted(named) == sorted(messages._FULL_NAMES)
    assert sorted(messages.Messages.__annotations__) == sorted(messages._FULL_NAMES)
    assert messages.Example is messages.STANDARD.Example
    assert messages.NamedFeatureList(type="SHARED").type == messages.SHARED


def test_an_extended_line_id_has_fields_and_defaults() -> None:
    line_id = messages.with_line_id(EXTENDED).LineId.FromString(extended_line_id())
    assert (line_id.uid, line_id.did, line_id.video_play_time) == (7, "d", 9)
    assert (list(line_id.vids), list(line_id.tags), list(line_id.marks)) == ([1, 2], [b"\xff"], [3, 4])
    assert (line_id.stay, line_id.page, line_id.seen) == (2.5, -3, True)
    assert line_id.sample_rate == 1.0


def test_equal_fields_give_the_same_classes() -> None:
    again = LineIdFields(tuple(reversed(EXTENDED.fields)))
    family = messages.with_line_id(again)
    assert family is messages.with_line_id(EXTENDED)
    assert messages.family_of(family.Example().line_id) is family
    assert messages.family_of(messages.Example()) is messages.STANDARD


def test_repeated_numbers_are_packed_by_default() -> None:
    line_id = messages.with_line_id(EXTENDED).LineId(vids=[1, 2], marks=[3, 4])
    assert line_id.SerializeToString().hex() == "9a0a020102" + "c03803" + "c03804"


@pytest.mark.parametrize("kind", ["instance", "example"])
def test_unknown_fields_survive_parse_modify_serialize(kind: typing.Literal["instance", "example"]) -> None:
    family = messages.with_line_id(EXTENDED)
    full = family.record_class(kind)()
    full.line_id.ParseFromString(extended_line_id())  # type: ignore[attr-defined]
    plain = typing.cast(typing.Any, messages.record_class(kind).FromString(full.SerializeToString()))
    assert not hasattr(plain.line_id, "did")
    plain.line_id.uid = 8
    plain.label.append(1.0)
    back = typing.cast(typing.Any, family.record_class(kind).FromString(plain.SerializeToString()))
    assert back.line_id.uid == 8
    assert (back.line_id.did, back.line_id.video_play_time, list(back.line_id.vids)) == ("d", 9, [1, 2])


def test_fields_unknown_to_an_extended_line_id_survive_too() -> None:
    family = messages.with_line_id(LineIdFields.standard().extended({"did": (11, "string")}))
    line_id = family.LineId.FromString(extended_line_id())
    line_id.did = "other"
    back = messages.with_line_id(EXTENDED).LineId.FromString(line_id.SerializeToString())
    assert (back.did, back.video_play_time, list(back.vids)) == ("other", 9, [1, 2])


def test_bytes_other_than_a_message_are_refused() -> None:
    with pytest.raises(RecordCorrupt, match="part-0: record 3: 3 bytes are no Instance"):
        messages.parse_message(messages.Instance, b"\x0a\xff\x01", "part-0: record 3")


def test_an_unknown_kind_of_record_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'examples'.*instance, example"):
        messages.record_class("examples")  # type: ignore[arg-type]
    assert messages.record_class("tf_example") is messages.TfExample


def test_a_message_of_another_module_belongs_to_no_family() -> None:
    stranger = messages.Messages(LineIdFields.standard())  # not made by with_line_id, so not known
    with pytest.raises(ConfigError, match=r"monolith\.io.proto.Example of another module"):
        messages.family_of(stranger.Example())


def test_a_default_that_protobuf_refuses_is_a_config_error() -> None:
    fields = LineIdFields.standard().extended({"x": LineIdField(name="x", number=11, type="int32", default=1 << 40)})
    with pytest.raises(ConfigError, match="LineId"):
        messages.with_line_id(fields)
