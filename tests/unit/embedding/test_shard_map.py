"""Ids find their shard, and results their place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.core.errors import ConfigError
from monolith.embedding.shard_map import deduplicate, divide, shard_of

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(INT64, max_size=50), st.integers(1, 9))
def test_an_id_belongs_to_the_shard_of_its_unsigned_value(ids: list[int], shards: int) -> None:
    assert shard_of(np.array(ids, np.int64), shards).tolist() == [(number % 2**64) % shards for number in ids]


def test_shards_must_be_at_least_one() -> None:
    with pytest.raises(ConfigError, match="shards is 0"):
        shard_of([1], 0)


@given(st.lists(INT64, max_size=50), st.integers(1, 5))
def test_a_division_holds_every_id_once_and_says_where_it_was(ids: list[int], shards: int) -> None:
    array = np.array(ids, np.int64)
    division = divide(array, shards)
    assert len(division.parts) == len(division.places) == shards
    together = np.empty_like(array)
    for shard, (part, places) in enumerate(zip(division.parts, division.places, strict=True)):
        assert (shard_of(part, shards) == shard).all()
        assert places.tolist() == sorted(places.tolist())
        together[places] = part
    assert together.tolist() == ids
    assert sum(len(part) for part in division.parts) == len(ids)


@given(st.lists(st.integers(-3, 3), max_size=30))
def test_deduplicated_ids_come_in_the_order_first_seen(ids: list[int]) -> None:
    unique, positions = deduplicate(np.array(ids, np.int64))
    assert unique.tolist() == list(dict.fromkeys(ids))
    assert unique[positions].tolist() == ids
