"""Which pushes one server has applied and another one has not."""

from __future__ import annotations

import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from monolith import _native
from monolith.embedding import MultiTable, Sgd, SliceSpec, TableSpec
from monolith.ps.fused import PushPart, encode_push
from monolith.ps.push_marks import WINDOW, missing_pushes, read_marks


def encoded(applied: set[tuple[int, int]]) -> bytes:
    """Return the marks of a shard that applied these pushes, one run per push."""
    clients = sorted({client for client, _ in applied})
    parts = [struct.pack("<II", 1, len(clients))]
    for client in clients:
        own = sorted((sequence for one, sequence in applied if one == client), reverse=True)
        parts.append(struct.pack("<QQI", client, own[0], len(own)))
        parts += [struct.pack("<II", own[0] - sequence, 1) for sequence in own]
    return b"".join(parts)


pushes = st.sets(st.tuples(st.integers(1, 3), st.integers(1, 40)), max_size=30)


@given(st.lists(pushes, min_size=1, max_size=3))
def test_a_server_lacks_the_union_of_all_pushes_less_its_own(applied: list[set[tuple[int, int]]]) -> None:
    found = missing_pushes({server: encoded(one) for server, one in enumerate(applied)})
    everything = set().union(*applied)
    assert found == {server: everything - one for server, one in enumerate(applied)}


def test_pushes_below_the_window_of_a_server_are_not_missing_there() -> None:
    old, new = {(1, 5)}, {(1, 5 + WINDOW + 1)}
    assert missing_pushes({0: encoded(old), 1: encoded(new)}) == {0: new, 1: set()}
    old, new = {(1, 5)}, {(1, 5 + WINDOW)}
    assert missing_pushes({0: encoded(old), 1: encoded(new)}) == {0: new, 1: old}


def test_sequences_that_lie_far_apart_are_compared() -> None:
    old, new = {(1, 5)}, {(1, 1 << 62), (2, 1 << 63)}
    assert missing_pushes({0: encoded(old), 1: encoded(new)}) == {0: new, 1: set()}
    assert missing_pushes({0: encoded(old), 1: encoded(old | {(2, 1)})}) == {0: {(2, 1)}, 1: set()}


@given(st.lists(st.sets(st.integers(1, 3 * WINDOW), max_size=6), min_size=2, max_size=4))
def test_only_pushes_within_the_window_of_a_server_are_missing_there(applied: list[set[int]]) -> None:
    kept = [{one for one in pushes if one >= max(pushes) - WINDOW} for pushes in applied]
    found = missing_pushes({server: encoded({(1, push) for push in one}) for server, one in enumerate(kept)})
    everything = set().union(*kept)
    for server, one in enumerate(kept):
        lowest = max(one or everything, default=0) - WINDOW
        assert found[server] == {(1, push) for push in everything - one if push >= lowest}


def test_the_marks_of_a_shard_are_read() -> None:
    model = MultiTable([TableSpec("t", [SliceSpec(1, optimizer=Sgd(1.0))])])
    shard = _native.PsShard(0, 1, [model["t"]._native], ["t"])
    assert read_marks(shard.client_marks()) == {}
    for sequence in (3, 4, 7):
        part = PushPart(0, np.array([1]), np.ones((1, 1), np.float32), np.ones(1, np.uint32), np.ones(1, np.float32))
        shard.push(encode_push(9, sequence, 0, 0, [part], half=False))
    assert read_marks(shard.client_marks()) == {9: (7, 0b11001)}
