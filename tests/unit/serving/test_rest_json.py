"""JSON of requests: byte strings, read natively where they are plain base64."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith import _native
from monolith.core.errors import InvalidRequest
from monolith.serving.rest_json import parse_body


@given(st.binary(max_size=200))
def test_bytes_come_back_from_base64(data: bytes) -> None:
    text = base64.b64encode(data).decode()
    assert _native.decode_base64(text) == data
    assert parse_body(json.dumps({"inputs": {"r": [{"b64": text}]}}).encode()).inputs == {"r": [data]}


@given(st.text(alphabet="AZaz09+/= \n-é", max_size=12))
def test_what_is_no_base64_for_python_is_none_for_us(text: str) -> None:
    found = _native.decode_base64(text)
    if found is not None:
        assert found == base64.b64decode(text, validate=True)


@pytest.mark.parametrize("text", ["Zg", "Zm9-", "Zm 9", "é", "\ud800", "Zg==Zg=="])
def test_what_is_no_base64_is_refused(text: str) -> None:
    body = json.dumps({"inputs": {"r": [{"b64": text}]}}).encode()
    with pytest.raises(InvalidRequest, match="no base64"):
        parse_body(body)
