from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.core import fid
from monolith.core.errors import ConfigError

int64s = st.integers(-(2**63), 2**63 - 1)
uint64s = st.integers(0, 2**64 - 1)


@given(slot=st.integers(0, 1023), signature=uint64s)
def test_v1_parts_come_back_and_fit_an_int64(slot: int, signature: int) -> None:
    made = fid.make_v1(slot, signature)
    assert (fid.slot_v1(made), fid.signature_v1(made)) == (slot, signature % 2**54)
    assert -(2**63) <= made < 2**63
    assert (made < 0) == (slot >= 512)


@given(slot=st.integers(0, 32767), signature=uint64s)
def test_v2_parts_come_back_and_are_never_negative(slot: int, signature: int) -> None:
    made = fid.make_v2(slot, signature)
    assert (fid.slot_v2(made), fid.signature_v2(made)) == (slot, signature % 2**48)
    assert 0 <= made < 2**63


@given(uint64s)
def test_signed_and_unsigned_are_two_faces_of_the_same_bits(bits: int) -> None:
    assert fid.as_unsigned(fid.as_signed(bits)) == bits
    assert fid.as_signed(fid.as_signed(bits)) == fid.as_signed(bits)


@given(st.lists(int64s))
def test_arrays_give_the_same_as_single_ids(ids: list[int]) -> None:
    array = np.array(ids, np.int64)
    for function in (fid.slot_v1, fid.slot_v2, fid.signature_v1, fid.signature_v2, fid.v1_to_v2):
        assert function(array).tolist() == [function(one) for one in ids]
        assert function(array.view(np.uint64)).tolist() == function(array).tolist()
        assert function(array).dtype == np.int64
    assert fid.switch_slot(array, 7).tolist() == [fid.switch_slot(one, 7) for one in ids]
    assert fid.switch_slot(array, 600, version=1).tolist() == [fid.switch_slot(one, 600, version=1) for one in ids]


def test_arrays_keep_their_shape_and_are_not_written_to() -> None:
    array = np.arange(6, dtype=np.int64).reshape(2, 3)
    array.flags.writeable = False
    assert fid.v1_to_v2(array).shape == (2, 3)
    assert fid.switch_slot(array, 3).shape == (2, 3)
    assert fid.slot_v1([]).shape == (0,)
    assert int(fid.slot_v2(np.int64(5 << 48))) == 5


@pytest.mark.parametrize("array", [np.array([1.5]), np.array([1], np.int32), np.array(["a"])])
def test_an_array_of_another_type_is_refused_by_name(array: np.ndarray) -> None:
    with pytest.raises(ConfigError, match=f"int64 or uint64, got {array.dtype}"):
        fid.v1_to_v2(array)


def test_an_id_that_needs_more_than_64_bits_is_refused() -> None:
    for wrong in (2**64, -(2**63) - 1):
        with pytest.raises(ConfigError, match=str(wrong)):
            fid.slot_v1(wrong)


@given(slot=st.integers(0, 1023), other=st.integers(0, 1023), signature=uint64s)
def test_switching_the_slot_keeps_the_signature(slot: int, other: int, signature: int) -> None:
    assert fid.switch_slot(fid.make_v1(slot, signature), other, version=1) == fid.make_v1(other, signature)
    assert fid.switch_slot(fid.make_v2(slot, signature), other) == fid.make_v2(other, signature)


def test_switching_the_slot_leaks_no_bit_of_the_old_one() -> None:
    assert fid.slot_v2(fid.switch_slot(fid.make_v2(305, 2**48 - 1), 306)) == 306


@pytest.mark.parametrize(("version", "slot"), [(1, 1024), (1, -1), (2, 32768), (2, -1)])
def test_a_slot_that_does_not_exist_is_refused_with_slot_and_range(version: Literal[1, 2], slot: int) -> None:
    last = 1023 if version == 1 else 32767
    calls = [
        lambda: (fid.make_v1 if version == 1 else fid.make_v2)(slot, 0),
        lambda: fid.from_value(slot, "x", version=version),
        lambda: fid.from_int64(slot, 1, version=version),
        lambda: fid.cross(1, 2, slot, version=version),
        lambda: fid.switch_slot(1, slot, version=version),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=rf"slot {slot} is outside 0\.\.{last}"):
            call()


def test_a_version_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="version must be 1 or 2, got 3"):
        fid.from_value(1, "x", version=3)  # type: ignore[arg-type]


@given(st.integers())
def test_a_number_and_its_decimal_text_are_the_same_value(number: int) -> None:
    assert fid.from_value(9, number) == fid.from_value(9, str(number)) == fid.from_value(9, str(number).encode())


@given(st.text(), st.integers(0, 1023))
def test_the_v2_id_of_a_value_is_its_v1_id_converted(text: str, slot: int) -> None:
    assert fid.from_value(slot, text) == fid.v1_to_v2(fid.from_value(slot, text, version=1))


@pytest.mark.parametrize("value", [1.5, None, True])
def test_a_value_of_another_type_is_refused_with_slot_and_value(value: object) -> None:
    with pytest.raises(ConfigError, match=f"slot 9.*{value}"):
        fid.from_value(9, value)  # type: ignore[arg-type]


@given(int64s, int64s, st.integers(0, 1023))
def test_a_cross_ignores_the_order_and_the_sign_of_the_notation(a: int, b: int, slot: int) -> None:
    assert fid.cross(a, b, slot) == fid.cross(b, a, slot) == fid.cross(fid.as_unsigned(a), b, slot)
    assert fid.cross(a, b, slot) == fid.v1_to_v2(fid.cross(a, b, slot, version=1))
