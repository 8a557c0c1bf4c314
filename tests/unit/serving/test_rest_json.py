"""JSON of requests: byte strings, read natively where they are plain base64."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from monolith import _native
from monolith.core.errors import InvalidRequest
from monolith.serving.api.rest_json import encode_answer, parse_body


@given(st.binary(max_size=200))
def test_bytes_come_back_from_base64(data: bytes) -> None:
    text = base64.b64encode(data).decode()
    assert _native.decode_base64(text) == data
    assert parse_body(json.dumps({"inputs": {"r": [{"b64": text}]}}).encode()).inputs == {"r": [data]}


@given(st.text(alphabet="AZaz09+/= \n-é", max_size=12))
def test_base64_is_accepted_exactly_as_by_python(text: str) -> None:
    found = _native.decode_base64(text)
    if found is not None:
        assert found == base64.b64decode(text, validate=True)


@pytest.mark.parametrize("text", ["Zg", "Zm9-", "Zm 9", "é", "\ud800", "Zg==Zg=="])
def test_invalid_base64_is_refused(text: str) -> None:
    body = json.dumps({"inputs": {"r": [{"b64": text}]}}).encode()
    with pytest.raises(InvalidRequest, match="invalid base64"):
        parse_body(body)


RECORDS = st.binary(max_size=12).map(lambda data: {"b64": base64.b64encode(data).decode()})
VALUES = st.recursive(
    RECORDS | st.none() | st.integers() | st.text(max_size=5) | st.just("b64"),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b64", 'q"', "é"]), inner, max_size=2)
    ),
    max_leaves=12,
)


@given(VALUES, st.sampled_from([None, 1]), st.booleans())
def test_records_that_are_lifted_are_those_of_the_plain_json(value: object, indent: int | None, is_ascii: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii)
    lifted = _native.lift_records(text.encode())
    if lifted is None:
        return
    rest, records = lifted

    def put_back(found: object) -> object:
        if isinstance(found, dict):
            if set(found) == {"b64"}:
                return {"b64": base64.b64encode(records[found["b64"]]).decode()}
            return {name: put_back(each) for name, each in found.items()}
        return [put_back(each) for each in found] if isinstance(found, list) else found

    assert put_back(json.loads(rest)) == value


def test_a_body_of_instances_is_answered_by_row_and_one_of_inputs_by_column() -> None:
    assert parse_body(b'{"instances": [1, 2]}').is_by_row
    assert not parse_body(b'{"inputs": [1, 2]}').is_by_row


def test_the_form_of_a_body_does_not_change_the_request() -> None:
    records = [{"b64": "Zm9v"}, {"b64": "YmFy"}]
    for body in ({"inputs": {"r": records}}, {"instances": [{"r": each} for each in records]}):
        plain = json.dumps({**body, "signature_name": "s"})
        escaped = plain.replace('"s"', '"\\u0073"')  # an escape is read by Python alone
        assert _native.lift_records(plain.encode())
        assert not _native.lift_records(escaped.encode())
        for text in (plain, escaped, plain.replace(" ", "\n\t")):
            found = parse_body(text.encode())
            assert (found.signature, found.inputs) == ("s", {"r": [b"foo", b"bar"]})
    assert parse_body(b'{"instances": [{"b64": "Zm9v"}]}').inputs == {"": [b"foo"]}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"inputs": {"r": [{"b64": "Zm9v"}, {"b64": 0}]}}', "must be a string"),
        (b'{"inputs": {"r": [{"b64": "Zm9v"}', "invalid JSON"),
        (b'{"inputs": {"r": [{"b64": "Zm9v"}]}} x', "invalid JSON"),
        (b'{"inputs": {"r": [{"b64": "Zm\n9v"}]}}', "invalid JSON"),
    ],
)
def test_an_invalid_body_with_records_is_refused_with_the_reason(body: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        parse_body(body)


@given(arrays.arrays(np.float32, arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)))
def test_floats_are_read_as_they_were_written(scores: np.ndarray) -> None:  # type: ignore[type-arg]
    found = json.loads(encode_answer({"ctr": scores}, is_by_row=False))["outputs"]
    np.testing.assert_array_equal(np.array(found, np.float32).reshape(scores.shape), scores)


def test_outputs_are_answered_by_column_and_by_row() -> None:
    ctr, ids = np.array([[0.5, 1.0]], np.float32).T, np.array([1, 2])
    assert encode_answer({"ctr": ctr[:, 0]}, is_by_row=False) == b'{"outputs":[0.5,1.0]}'
    assert encode_answer({"ctr": ctr[:, 0]}, is_by_row=True) == b'{"predictions":[0.5,1.0]}'
    assert encode_answer({"ctr": ctr, "id": ids}, is_by_row=False) == b'{"outputs":{"ctr":[[0.5],[1.0]],"id":[1,2]}}'
    assert json.loads(encode_answer({"ctr": ctr, "id": ids}, is_by_row=True)) == {
        "predictions": [{"ctr": [0.5], "id": 1}, {"ctr": [1.0], "id": 2}]
    }


def test_an_output_of_bytes_is_always_base64_and_one_of_text_is_text() -> None:
    text = np.array([b"plain", b"\xff"], object)
    assert json.loads(encode_answer({"key_bytes": text}, is_by_row=False))["outputs"] == [
        {"b64": base64.b64encode(b"plain").decode()},
        {"b64": base64.b64encode(b"\xff").decode()},
    ]
    assert json.loads(encode_answer({"key": text[:1]}, is_by_row=False))["outputs"] == ["plain"]
