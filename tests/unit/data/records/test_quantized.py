from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.core.errors import ConfigError, RecordCorrupt, SchemaMismatch
from monolith.data.records.quantized import (
    PREFIX,
    decode_bfloat16,
    decode_quantized,
    encode_bfloat16,
    encode_quantized,
    is_quantized,
)

HALVES = st.floats(-65504, 65504, width=32)


@given(st.lists(HALVES, min_size=5, max_size=40))
def test_many_values_come_back_within_a_level(values: list[float]) -> None:
    data = encode_quantized(values)
    assert len(data) == len(PREFIX) + 4 + len(values)
    spread = max(values) - min(values)
    # Half a level, and the rounding of both ends to half floats.
    allowed = spread / 255 * 0.51 + 2 * max(map(abs, values)) * 2**-11 + 2**-24
    np.testing.assert_allclose(decode_quantized(data, len(values)), values, rtol=0, atol=allowed)


@given(st.lists(HALVES, max_size=4))
def test_few_values_come_back_within_half_a_unit_in_the_last_place(values: list[float]) -> None:
    data = encode_quantized(values)
    assert len(data) == len(PREFIX) + 2 * len(values)
    np.testing.assert_allclose(decode_quantized(data, len(values)), values, rtol=2**-11 + 2**-23, atol=2**-24)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 16])
def test_constant_vectors_stay_constant(count: int) -> None:
    decoded = decode_quantized(encode_quantized([0.5] * count))
    np.testing.assert_allclose(decoded, [0.5] * count, rtol=2**-11)
    assert decode_quantized(encode_quantized([0.0] * count)).tolist() == [0.0] * count


def test_the_halves_of_few_values_are_read_as_the_original_reads_them() -> None:
    data = PREFIX + np.array([1.0, -1.0, np.inf, -np.inf], "<f2").tobytes()
    assert decode_quantized(data).tolist() == [1 + 2**-11, -1 - 2**-11, 65504, -65504]
    assert decode_quantized(PREFIX + np.array([0.0, -0.0], "<f2").tobytes()).tolist() == [0, 0]


@pytest.mark.parametrize(
    "body", [b"\0", b"\0" * 3, b"\0" * 7, b"\x01\x7e", b"\0\x7c" + b"\0" * 7, b"\x01\x7e" + b"\0" * 9]
)
def test_damaged_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(RecordCorrupt):
        decode_quantized(PREFIX + body)


def test_other_bytes_and_other_widths_are_refused() -> None:
    assert not is_quantized(b"UE_QT")
    with pytest.raises(RecordCorrupt, match="begins with"):
        decode_quantized(b"plain")
    with pytest.raises(SchemaMismatch, match="3 values, 4 are declared"):
        decode_quantized(encode_quantized([1, 2, 3]), 4)


@pytest.mark.parametrize("values", [[1, float("nan")], [1] * 5 + [float("inf")], [70000.0], [[1.0]]])
def test_values_that_do_not_fit_are_refused(values: list[float]) -> None:
    with pytest.raises(ConfigError):
        encode_quantized(values)


def test_bfloat16_cuts_the_lower_half() -> None:
    assert encode_bfloat16([1.0, -2.0]).hex() == "803f00c0"
    assert decode_bfloat16(encode_bfloat16([1.0, 3.14159])).tolist() == [1.0, 3.140625]
    with pytest.raises(RecordCorrupt):
        decode_bfloat16(b"\0")
