from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.core import fid
from monolith.core.errors import ConfigError
from monolith.data import Ragged
from monolith.data.transforms.ragged import concat, feature_combine, gen_fid_mask, map_id, row_ids, switch_slot, unique

IDS = st.lists(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=4), max_size=5)


ragged = Ragged.from_lists


@given(a=IDS, slot=st.integers(0, 1023), version=st.sampled_from([1, 2]))
def test_combine_is_the_cross_of_every_pair(a: list[list[int]], slot: int, version: int) -> None:
    b = [row[::-1] for row in a]
    got = feature_combine(ragged(a), ragged(b), slot, version)
    assert got.tolist() == [[fid.cross(x, y, slot, version) for x in r for y in s] for r, s in zip(a, b, strict=True)]


@given(a=IDS)
def test_concat_joins_rows_or_stacks_them(a: list[list[int]]) -> None:
    b = [[7, *row] for row in a]
    assert concat([ragged(a), ragged(b)], axis=1).tolist() == [x + y for x, y in zip(a, b, strict=True)]
    assert concat([ragged(a), ragged(b)]).tolist() == a + b


@given(a=IDS)
def test_masks_and_rows_of_values(a: list[list[int]]) -> None:
    wanted = a[0][0] if a and a[0] else 3
    assert gen_fid_mask(ragged(a), wanted).tolist() == [float(wanted in row) for row in a]
    assert row_ids(ragged(a).offsets).tolist() == [i for i, row in enumerate(a) for _ in row]


def test_switch_slot_keeps_signature_and_offsets() -> None:
    assert switch_slot(ragged([[], [fid.make_v2(305, 9)]]), 306).tolist() == [[], [fid.make_v2(306, 9)]]


def test_shared_bags_stay_shared_or_are_expanded() -> None:
    shared = Ragged(np.array([5, 6]), np.array([0, 2]), shared=True)
    assert switch_slot(shared, 3).shared
    crossed = feature_combine(shared, ragged([[1], [], [2]]), 9)
    assert [len(row) for row in crossed.tolist()] == [2, 0, 2]


@pytest.mark.parametrize(("count", "distinct"), [(1_000, 100), (100_000, 10_000), (0, 1)])
def test_unique_ids_come_in_the_order_first_seen(count: int, distinct: int) -> None:
    random = np.random.default_rng(count)
    values = random.integers(-distinct // 2, distinct // 2 + 1, count) << 8
    found, places = unique(values)
    assert found.tolist() == list(dict.fromkeys(values.tolist()))
    assert np.array_equal(found[places], values)
    assert unique([-1, 0, -1])[0].tolist() == [-1, 0], "no id is reserved, and nothing is left from before"


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
        gen_fid_mask(Ragged(values, offsets), 1)
    with pytest.raises(ConfigError, match=message):
        feature_combine(Ragged(values, offsets), ragged([[1]]), 3)


def test_rows_must_agree_and_slots_exist() -> None:
    with pytest.raises(ConfigError, match="1 and 2 rows"):
        feature_combine(ragged([[1]]), ragged([[1], []]), 3)
    with pytest.raises(ConfigError, match="slot 40000"):
        feature_combine(ragged([[1]]), ragged([[1]]), 40000)
    with pytest.raises(ConfigError, match="values has dtype float64"):
        gen_fid_mask(Ragged([1.5], [0, 1]), 1)
