from __future__ import annotations

import pytest

from monolith.agent.export_names import saved_model_name
from monolith.core.errors import RecordCorrupt


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


VARINT, FIXED64, FIXED32 = b"\x38\x96\x01", b"\x41" + bytes(8), b"\x4d" + bytes(4)
"""Fields 7, 8 and 9, which a reader of names skips."""


def saved_model(filler: bytes) -> bytes:
    value = field(2, filler + field(2, b"ads_ranker:ps_0"))
    attribute = field(5, filler + field(1, b"model_name") + value)
    node = field(1, filler + field(2, b"TfServingRemotePredict") + attribute)
    other = field(1, field(2, b"MatMul"))
    return field(2, filler + field(2, filler + other + node))


@pytest.mark.parametrize("filler", [b"", VARINT, FIXED64, FIXED32, VARINT + FIXED32])
def test_the_name_of_the_remote_model_is_found_among_fields_of_every_kind(filler: bytes) -> None:
    assert saved_model_name(saved_model(filler), "saved_model.pb") == "ads_ranker"


def test_a_saved_model_without_a_remote_operator_has_no_name() -> None:
    assert saved_model_name(field(2, field(2, field(1, field(2, b"MatMul")))), "saved_model.pb") is None


@pytest.mark.parametrize("content", [b"\x12\x50", b"\x16", b"\x12\x04\x12\x50ab"])
def test_bytes_that_are_cut_off_are_refused(content: bytes) -> None:
    with pytest.raises(RecordCorrupt, match="not a SavedModel"):
        saved_model_name(content, "saved_model.pb")
