from __future__ import annotations

from typing import Any

import pytest

from monolith.core.errors import ConfigError
from monolith.data.records import messages
from monolith.data.records.line_id import LineIdField, LineIdFields


def test_the_standard_table_matches_the_message() -> None:
    fields = {
        field.name: (field.number, field.is_repeated, field.default_value)
        for field in messages.LineId.DESCRIPTOR.fields
        if not field.is_repeated
    }
    for field in LineIdFields.standard():
        if field.is_repeated or field.kind == "text":
            continue
        assert fields[field.name] == (field.number, False, field.default)
    assert [field.name for field in LineIdFields.standard()] == [
        field.name for field in sorted(messages.LineId.DESCRIPTOR.fields, key=lambda field: field.number)
    ]


def test_the_native_table_has_kinds_and_defaults() -> None:
    native = {row[0]: row[1:] for row in LineIdFields.standard().extended({"did": (11, "bytes")}).native()}
    assert native["uid"] == (2, "fixed64", False, 0.0)
    assert native["actions"] == (6, "int", True, 0.0)
    assert native["sample_rate"] == (27, "float", False, 1.0)
    assert native["is_draw"] == (87, "int", False, 0.0)
    assert native["did"] == (11, "text", False, 0.0)


def test_an_extended_table_is_another_one_in_order_of_numbers() -> None:
    standard = LineIdFields.standard()
    extended = standard.extended({"vids": (163, "repeated int64"), "did": (11, "string")})
    assert "did" not in standard
    assert [field.number for field in extended] == sorted(field.number for field in extended)
    assert extended["vids"] == LineIdField(name="vids", number=163, type="int64", is_repeated=True, is_packed=True)
    assert extended == standard.extended({"did": (11, "string")}).extended({"vids": (163, "repeated int64")})


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"uid": (11, "string")}, "'uid'.*exists already"),
        ({"did": (2, "string")}, "number 2.*'uid'"),
        ({"did": (11, "text")}, "'text'.*known types"),
        ({"did": (11, "sint64")}, "'sint64'"),
        ({"did": (19500, "string")}, "19500.*reserves"),
        ({"did": (0, "string")}, "number 0"),
        ({"did": (1 << 29, "string")}, "number 536870912"),
        ({"did": (True, "string")}, "number True"),
        ({"d-id": (11, "string")}, "'d-id'"),
        ({"did": 11}, "\\(number, type\\)"),
        ({"did": (11, "repeated")}, "type ''"),
        ({"did": LineIdField(name="other", number=11, type="int32")}, "'other'.*'did'"),
    ],
)
def test_a_field_that_cannot_be_is_refused(extra: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        LineIdFields.standard().extended(extra)


@pytest.mark.parametrize(
    "settings",
    [
        {"type": "string", "is_repeated": True, "is_packed": True},
        {"type": "int64", "is_packed": True},
        {"type": "string", "default": 1},
        {"type": "int64", "is_repeated": True, "default": 1},
        {"type": "int64", "default": 1.5},
    ],
)
def test_settings_that_do_not_fit_the_type_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="'x'"):
        LineIdField(name="x", number=11, **settings)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'did'; known: uid, .*extended"):
        LineIdFields.standard()["did"]
