"""The rule from a value to its id: one row of the table in docs/reference/ids.md per test."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.core import fid
from monolith.core.errors import ConfigError

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(INT64)
def test_an_integer_is_its_own_id(value: int) -> None:
    assert fid.id_of(value) == fid.id_of(value, value_type="integer") == value


@given(st.integers(2**63, 2**64 - 1))
def test_an_unsigned_integer_keeps_its_bits(value: int) -> None:
    assert fid.as_unsigned(fid.id_of(value)) == value


@given(INT64)
def test_decimal_text_of_an_integer_feature_is_the_integer(value: int) -> None:
    assert fid.id_of(str(value), value_type="integer") == fid.id_of(str(value).encode(), value_type="integer") == value


@given(INT64)
def test_an_integer_of_a_text_feature_is_its_decimal_text(value: int) -> None:
    assert fid.id_of(value, value_type="text") == fid.id_of(str(value))


@given(st.text() | st.binary())
def test_text_has_the_64_bits_of_its_hash(value: str | bytes) -> None:
    content = value.encode(errors="surrogatepass") if isinstance(value, str) else value
    assert fid.as_unsigned(fid.id_of(content)) == fid.city_hash64(content)


@given(st.integers(-(2**53), 2**53))
def test_a_whole_float_is_the_integer(value: int) -> None:
    assert fid.id_of(float(value)) == value


@pytest.mark.parametrize(("kind", "bits"), [(np.float16, 11), (np.float32, 24), (np.float64, 53)])
def test_a_whole_float_is_refused_above_the_integers_that_its_type_holds(kind: Any, bits: int) -> None:
    assert fid.id_of(kind(2**bits)) == 2**bits
    assert fid.id_of(kind(-(2**bits))) == -(2**bits)
    with pytest.raises(ConfigError, match="expected an integer, a whole float, text or bytes"):
        fid.id_of(kind(2**bits + 2))


@given(st.integers(0, 2**15 - 1), st.integers(0, 2**48 - 1))
def test_an_integer_that_fits_shares_its_id_with_the_slot(slot: int, value: int) -> None:
    assert fid.id_of(value, slot=slot) == fid.make_v2(slot, value)


@given(st.integers(0, 2**15 - 1), st.integers(2**48, 2**63 - 1) | st.integers(-(2**63), -1))
def test_an_integer_that_does_not_fit_beside_the_slot_is_hashed_on_request_only(slot: int, value: int) -> None:
    with pytest.raises(ConfigError, match="hash_wide"):
        fid.id_of(value, slot=slot)
    assert fid.id_of(value, slot=slot, hash_wide=True) == fid.from_int64(slot, value)


@given(st.integers(0, 2**15 - 1), st.text(st.characters(exclude_categories=["Cs"])))
def test_the_extractor_of_the_original_is_the_rule_of_text_beside_a_slot(slot: int, value: str) -> None:
    assert fid.from_value(slot, value) == fid.id_of(value, value_type="text", slot=slot)


@pytest.mark.parametrize("value", [2.5, float("nan"), float("inf"), 2.0**60, None, True, [7], {"id": 7}, object()])
def test_an_object_or_a_broken_number_has_no_id(value: Any) -> None:
    with pytest.raises(ConfigError, match="expected an integer, a whole float, text or bytes"):
        fid.id_of(value)


@pytest.mark.parametrize("value", ["", "x", "07", "+7", "-0", " 7", "7.0", str(2**64), str(-(2**63) - 1), "9" * 5000])
def test_text_that_is_not_a_canonical_64_bit_integer_is_refused_by_an_integer_feature(value: str) -> None:
    with pytest.raises(ConfigError):
        fid.id_of(value, value_type="integer")


def test_a_value_type_must_be_known() -> None:
    with pytest.raises(ConfigError, match="expected one of integer, text, fid, bucket, slot48"):
        fid.check_value_type("number", "feature 'user'")
