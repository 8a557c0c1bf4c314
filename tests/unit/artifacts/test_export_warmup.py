from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.artifacts.export_warmup import WarmupRequest, decode_warmup, encode_warmup
from monolith.core.errors import RecordCorrupt

REQUESTS = st.builds(
    WarmupRequest,
    model=st.text(max_size=5),
    signature=st.text(min_size=1, max_size=5),
    input=st.text(max_size=5),
    records=st.lists(st.binary(max_size=300), max_size=4).map(tuple),
    output_filter=st.lists(st.text(max_size=5), max_size=2).map(tuple),
)


@given(request=REQUESTS)
def test_a_request_comes_back_as_it_was(request: WarmupRequest) -> None:
    assert decode_warmup(encode_warmup(request)) == request


def test_the_bytes_are_those_of_tensorflow_serving() -> None:
    request = WarmupRequest(model="m", signature="s", input="examples", records=(b"ab",))
    spec = b"\x0a\x01m\x1a\x01s"
    tensor = b"\x08\x07" + b"\x12\x04\x12\x02\x08\x01" + b"\x42\x02ab"
    entry = b"\x0a\x08examples" + b"\x12" + bytes([len(tensor)]) + tensor
    body = b"\x0a" + bytes([len(spec)]) + spec + b"\x12" + bytes([len(entry)]) + entry
    log = b"\x0a" + bytes([len(body)]) + body
    assert encode_warmup(request) == b"\x32" + bytes([len(log)]) + log


@given(content=st.binary(max_size=100))
def test_other_bytes_are_refused_with_a_reason(content: bytes) -> None:
    with pytest.raises(RecordCorrupt, match="PredictionLog"):
        decode_warmup(b"\x0a\x00" + content)


def test_a_request_whose_input_is_numbers_is_refused() -> None:
    log = encode_warmup(WarmupRequest(model="m", signature="s", input="x", records=()))
    with pytest.raises(RecordCorrupt, match="strings"):
        decode_warmup(log.replace(b"\x08\x07\x12", b"\x08\x01\x12"))
