"""Pins feature ids to those of the original.

The layouts follow ``fid_test.cc`` and ``reader_util_test.cc``, ``from_int64`` follows ``extract_fid_test.py``; the ids
of values and of crosses were found in the example batch that the original ships (``example_batch.pbtxt``). They are
written as unsigned numbers, as they stand in those files.
"""

from __future__ import annotations

import numpy as np
import pytest

from monolith.core import fid
from monolith.core.errors import ConfigError

# text, CityHash64, slot, fid v1, fid v2
VALUES = [
    ("0", 0xD2ED96073B81823F, 520, 9380318556689891903, 146531945696821823),
    ("1", 0x811F023A122D0BE1, 520, 9376215397644962785, 146369436325841889),
    ("ios", 0x19463DF5D8064574, 52, 938505698453898612, 14704824889525620),
    ("android", 0x9521B08D4DE90295, 52, 946231517668508309, 14830819732947605),
    ("wifi", 0x051E13C93EB31947, 61, 1107344313440999751, 17191728640629063),
    ("2020", 0x6DDBCC8C6FEDCAA1, 232, 4187165182116350625, 65527098142214817),
    ("12074", 0x2D73C4226C1C7FED, 207, 3743551367396753389, 58480972300845037),
    ("4382", 0xF1A22809F9368B46, 214, 3864695453538224966, 60279668316998470),
]


def test_v1_keeps_slot_and_the_low_54_bits_of_the_signature() -> None:
    made = fid.make_v1(1, 100)
    assert (fid.slot_v1(made), fid.signature_v1(made)) == (1, 100)
    made = fid.make_v1(1023, 2**54)
    assert (fid.slot_v1(made), fid.signature_v1(made)) == (1023, 0)
    with pytest.raises(ConfigError):
        fid.make_v1(1024, 0)


def test_v2_keeps_slot_and_the_low_48_bits_of_the_signature() -> None:
    made = fid.make_v2(1024, 2**54)
    assert (fid.slot_v2(made), fid.signature_v2(made)) == (1024, 0)
    made = fid.make_v2(32767, 2**48)
    assert (fid.slot_v2(made), fid.signature_v2(made)) == (32767, 0)
    with pytest.raises(ConfigError):
        fid.make_v2(32768, 0)


def test_v1_becomes_v2_with_the_same_slot_and_signature() -> None:
    made = fid.v1_to_v2(fid.make_v1(1, 100))
    assert (fid.slot_v2(made), fid.signature_v2(made)) == (1, 100)


@pytest.mark.parametrize("slot", [123, 32767])
def test_the_v2_slot_is_above_bit_48(slot: int) -> None:
    assert fid.slot_v2(slot << 48) == slot


def test_an_integer_hashed_by_its_bytes() -> None:
    assert fid.from_int64(4, 185) == 1153447759131936


# D72
@pytest.mark.parametrize(("text", "city_hash", "slot", "v1", "v2"), VALUES)
def test_a_value_is_hashed_by_its_text(text: str, city_hash: int, slot: int, v1: int, v2: int) -> None:
    assert fid.city_hash64(text.encode()) == city_hash
    assert fid.from_value(slot, text, version=1) == fid.as_signed(v1)
    assert fid.from_value(slot, text) == v2
    if text.isdigit():
        assert fid.from_value(slot, int(text)) == v2


def test_a_column_of_v1_ids_becomes_v2() -> None:
    v1 = np.array([row[3] for row in VALUES], np.uint64)
    assert fid.v1_to_v2(v1).tolist() == [row[4] for row in VALUES]
    assert fid.v1_to_v2(v1.view(np.int64)).tolist() == [row[4] for row in VALUES]
    assert fid.slot_v1(v1).tolist() == [row[2] for row in VALUES]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (34661039000183975, 5496023425700513216, 9092789705426625231),
        (26375391288018365, 5495766155220566385, 9086397419364646740),
    ],
)
def test_a_cross_of_two_v1_ids(a: int, b: int, expected: int) -> None:
    slot = fid.slot_v1(expected)
    assert slot == 504
    assert fid.cross(a, b, slot, version=1) == fid.as_signed(expected)
    assert fid.cross(a, b, slot) == fid.v1_to_v2(fid.as_signed(expected))
