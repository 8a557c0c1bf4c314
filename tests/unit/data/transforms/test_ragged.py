from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.core import fid
from monolith.core.errors import ConfigError
from monolith.data.transforms.ragged import concat, feature_combine, gen_fid_mask, map_id, row_ids, switch_slot

IDS = st.lists(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=4), max_size=5)


def ragged(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *(len(row) for row in rows)])
    return np.array([value for row in rows for value in row], np.int64), offsets.astype(np.int64)


def rows_of(values: np.ndarray, offsets: np.ndarray) -> list[list[int]]:
    return [values[begin:end].tolist() for begin, end in pairwise(offsets.tolist())]


@given(a=IDS, slot=st.integers(0, 1023), version=st.sampled_from([1, 2]))
def test_combine_is_the_cross_of_every_pair(a: list[list[int]], slot: int, version: int) -> None:
    b = [row[::-1] for row in a]
    got = feature_combine(ragged(a), ragged(b), slot, version)
    assert rows_of(*got) == [[fid.cross(x, y, slot, version) for x in r for y in s] for r, s in zip(a, b, strict=True)]


@given(a=IDS)
def test_concat_joins_rows_or_stacks_them(a: list[list[int]]) -> None:
    b = [[7, *row] for row in a]
    assert rows_of(*concat([ragged(a), ragged(b)], axis=1)) == [x + y for x, y in zip(a, b, strict=True)]
    assert rows_of(*concat([ragged(a), ragged(b)])) == a + b


@given(a=IDS)
def test_masks_and_rows_of_values(a: list[list[int]]) -> None:
    wanted = a[0][0] if a and a[0] else 3
    assert gen_fid_mask(*ragged(a), wanted).tolist() == [float(wanted in row) for row in a]
    assert row_ids(ragged(a)[1]).tolist() == [i for i, row in enumerate(a) for _ in row]


def test_switch_slot_keeps_signature_and_offsets() -> None:
    values, offsets = switch_slot([fid.make_v2(305, 9)], [0, 0, 1], 306)
    assert values.tolist() == [fid.make_v2(306, 9)]
    assert offsets.tolist() == [0, 0, 1]


def test_map_id_of_nothing_and_of_unsorted_keys() -> None:
    assert map_id([[5, 1], [9, 5]], {9: -9, 1: 11, 5: 0}, default=7).tolist() == [[0, 11], [-9, 0]]
    assert map_id([5], {}).tolist() == [-1]
    assert map_id([], {1: 2}).tolist() == []


def test_nothing_joins_to_nothing() -> None:
    assert concat([]).offsets.tolist() == [0]
    with pytest.raises(ConfigError, match="nothing to join"):
        concat([], axis=1)


@pytest.mark.parametrize(
    ("values", "offsets", "message"),
    [
        ([1], [1], "must start with 0"),
        ([1], [0, 2, 1], "shrink at row 1"),
        ([1], [0, 2], "end at 2, there are 1 values"),
        ([1], [], "must start with 0"),
    ],
)
def test_bad_offsets_are_refused(values: list[int], offsets: list[int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        gen_fid_mask(values, offsets, 1)
    with pytest.raises(ConfigError, match=message):
        feature_combine((values, offsets), ([1], [0, 1]), 3)


def test_rows_must_agree_and_slots_exist() -> None:
    with pytest.raises(ConfigError, match="1 and 2 rows"):
        feature_combine(([1], [0, 1]), ([1], [0, 1, 1]), 3)
    with pytest.raises(ConfigError, match="slot 40000"):
        feature_combine(([1], [0, 1]), ([1], [0, 1]), 40000)
    with pytest.raises(ConfigError, match="values has dtype float64"):
        gen_fid_mask([1.5], [0, 1], 1)
